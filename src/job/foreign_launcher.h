#pragma once

#include <optional>
#include <string>

namespace annulus {

// A process that a launcher of another MPI, or of no MPI, started as one of several. This program's MPI does not know
// the other processes: each sees a world of one, takes itself for rank 0, and would train alone.
struct ForeignLaunch {
  int rank = 0;           // 0 if the launcher reports none
  std::string complaint;  // the launcher, the variable of the environment that shows it, and the remedy; one line
};

// Returns none unless the environment shows that this process is one of several. Variables that describe an allocation
// of a batch system (SLURM_NTASKS, PBS_NP) do not show that. The result is valid only if MPI sees a world of one.
// REQUIRES: the first call, whose result later calls return, is before MPI_Init, which changes the environment.
const std::optional<ForeignLaunch>& foreign_launch();
std::optional<ForeignLaunch> find_foreign_launch();  // in the current environment, for tests

// Returns a note if this is a single process in a Slurm allocation of several tasks, which may not be intended; else an
// empty text.
std::string unused_tasks(int world_size);

}  // namespace annulus
