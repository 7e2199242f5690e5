#pragma once

#include <string>

namespace annulus {

// The commit that the program was built from, such as "7f483d7", or "7f483d7-dirty" if tracked files had changed.
// Empty if the build knew none.
const char* commit();

// The version and the commit, such as "0.1.0 (commit 7f483d7)".
std::string version();

}  // namespace annulus
