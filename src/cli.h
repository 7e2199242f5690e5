#pragma once

#include <functional>

#include "collectives/world.h"

namespace annulus {

// What the command line asks for, ready to run on every rank. Returns the process's exit code.
using Command = std::function<int(const World&)>;

// Reads the command line, and the file named by --config. Prints help, or what is wrong (where `speaks`: every rank
// reads the same), and ends the process where there is nothing to run.
Command parse_command_line(int argc, char** argv, bool speaks);

}  // namespace annulus
