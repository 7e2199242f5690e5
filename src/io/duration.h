#pragma once

#include <string>

namespace annulus {

// "42 s", "31 min" with the given decimals, "1.7 h".
std::string duration_text(double seconds, int decimals = 0);

}  // namespace annulus
