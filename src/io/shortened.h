#pragma once

#include <string>
#include <string_view>

namespace annulus {

// Shortens lines in a message that has names from files, which may be megabytes: words to some 300 bytes, lines to some
// 1,000. Beginnings and ends are kept.
std::string shortened(std::string_view text);

}  // namespace annulus
