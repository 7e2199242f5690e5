#pragma once

#include <string>
#include <string_view>

namespace annulus {

// A text that comes from a file, such as a class's name, for a terminal or a line of a report: control characters, and
// bytes that are not UTF-8, become escapes such as \n and \x1b. What is printable stays as it is.
std::string printable(std::string_view text);

// The same of a message, whose lines stay lines.
std::string printable_lines(std::string_view text);

}  // namespace annulus
