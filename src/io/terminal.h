#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace annulus {

// Returns whether stdout or stderr is shown on a terminal that can redraw a line. Under mpirun every rank has a
// pseudo-terminal and a pipe for output, whatever mpirun's output is, so there mpirun's output is checked.
bool is_terminal(std::FILE* stream);

enum class Emphasis { error, warning, headline };

// Returns the text with the terminal's codes for red, yellow or bold, or unchanged if the stream is not a terminal or
// the environment variable NO_COLOR is set (no-color.org).
std::string emphasized(std::FILE* stream, Emphasis emphasis, const std::string& text);

std::string warning_mark();  // "warning: ", emphasized on stdout

// Writes to stderr in a single piece. Bypasses the streams and their locks, so it can be called whatever other threads
// do.
void write_to_stderr(std::string_view text);

}  // namespace annulus
