#pragma once

#include <string>
#include <string_view>

namespace annulus {

// Makes text from a file, such as a class's name, safe for a terminal or a report's line: control characters, and bytes
// that are not UTF-8, become escapes such as and \x1b. Printable characters are kept.
std::string printable(std::string_view text);

// Makes a message safe; keeps line breaks.
std::string printable_lines(std::string_view text);

}  // namespace annulus
