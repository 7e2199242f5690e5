#pragma once

#include <functional>

#include "collectives/world/world.h"
#include "src/job/watchdog.h"

namespace annulus {

// The requested command, ready to run on every rank.
struct Command {
  // One of these returns the process's exit code. Of commands that need no ranks, rank 0 alone runs the second one,
  // without MPI.
  std::function<int(const World&, Watchdog&)> run;
  std::function<int()> run_without_mpi;
  std::string device = "cpu";              // --device
  bool accepts_foreign_launchers = false;  // reports them itself; see src/job/foreign_launcher.h
  double stall_seconds = kStallSeconds;    // of the watchdog from MPI_Init on; 0: none
};

// Parses the command line and the file named by --config. On --help or an error, prints it and ends the process.
// `speaks`: whether this rank prints; every rank parses the same command line.
Command parse_command_line(int argc, char** argv, bool speaks);

}  // namespace annulus
