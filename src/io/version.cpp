#include "src/io/version.h"

#include <fmt/format.h>

namespace annulus {

std::string version() {
  return *commit() == '\0' ? ANNULUS_VERSION : fmt::format("{} (commit {})", ANNULUS_VERSION, commit());
}

}  // namespace annulus
