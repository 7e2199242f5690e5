#pragma once

#include <functional>

#include "collectives/world/world.h"
#include "src/job/watchdog.h"

namespace annulus {

// Holds the requested command, ready to run on every rank.
struct Command {
  // Return the process's exit code. A command that needs no ranks has only run_without_mpi, which rank 0 alone calls.
  std::function<int(const World&, Watchdog&)> run;
  std::function<int()> run_without_mpi;
  std::string device = "cpu";              // --device
  bool accepts_foreign_launchers = false;  // the command reports them; see src/job/foreign_launcher.h
  bool reports_on_stdout = false;          // --json -
  bool quiet = false;                      // --quiet
  double stall_seconds = kStallSeconds;    // the watchdog's limit, from MPI_Init on; 0: none
};

// Parses the command line and the file named by --config. On --help or an error, prints the text and ends the process.
// `speaks`: whether this rank prints; every rank parses the same command line.
Command parse_command_line(int argc, char** argv, bool speaks);

}  // namespace annulus
