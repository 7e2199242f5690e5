#pragma once

#include <string_view>

namespace annulus {

// Prepares stdin, stdout and stderr; to be called first. Replaces a closed stream by /dev/null: otherwise the next file
// to be opened would get the stream's descriptor and the program's output. From now on, writing to stdout never fails,
// so that a long run goes on: status_after_output() reports the first error.
void prepare_standard_streams();

// Lets this process continue if the reader of stdout ends (train | head), instead of ending it with SIGPIPE.
void outlive_reader();

// The name of a file that stands for standard output, as in --json -.
inline constexpr std::string_view kStandardOutput = "-";

// Decides what this process prints, after the command line is read. `for_report`: standard output is for
// write_report() alone, and everything else goes to standard error. `quiet`: of everything else, only print_anyway()
// prints.
void arrange_output(bool for_report, bool quiet);

// Writes a command's report to standard output. Throws Error.
void write_report(std::string_view text);

// Prints a line, also with --quiet: a warning, or a command's result.
void print_anyway(std::string_view line);

// Flushes stdout. If it could not be written, reports the reason on stderr, and returns a failure unless `status` is a
// failure already, or the reader ended.
int status_after_output(int status);

}  // namespace annulus
