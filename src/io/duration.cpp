#include "src/io/duration.h"

#include <fmt/format.h>

namespace annulus {

std::string duration_text(double seconds, int decimals) {
  if (seconds < 100) return fmt::format("{:.{}f} s", seconds, decimals);
  if (seconds < 6000) return fmt::format("{:.{}f} min", seconds / 60, decimals);
  return fmt::format("{:.1f} h", seconds / 3600);
}

}  // namespace annulus
