#include "tests/test_file.h"

#include <cstdlib>

namespace annulus::test {

std::string test_file(const std::string& name) {
  const char* const folder = std::getenv("ANNULUS_TESTS");
  return std::string(folder == nullptr ? ANNULUS_TESTS_FOLDER : folder) + "/" + name;
}

}  // namespace annulus::test
