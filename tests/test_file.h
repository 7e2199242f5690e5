#pragma once

#include <string>

namespace annulus::test {

// The path of a file in the folder tests/: in the sources, or in $ANNULUS_TESTS on a machine without them.
std::string test_file(const std::string& name);

}  // namespace annulus::test
