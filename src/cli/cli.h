#pragma once

#include <functional>

#include "collectives/world/world.h"
#include "src/job/watchdog.h"

namespace annulus {

// The command that was asked for, ready to run on every rank.
struct Command {
  std::function<int(const World&, Watchdog&)> run;  // returns the process's exit code
  double stall_seconds = kStallSeconds;             // of the watchdog from MPI_Init on; 0: none
};

// Reads the command line, and the file named by --config. Prints help, or what is wrong (where `speaks`: every rank
// reads the same), and ends the process where there is nothing to run.
Command parse_command_line(int argc, char** argv, bool speaks);

}  // namespace annulus
