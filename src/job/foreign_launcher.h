#pragma once

#include <optional>
#include <string>

namespace annulus {

// A process that another MPI's launcher, or a launcher without MPI, started together with others. This program's MPI
// does not know the other processes: each sees a single rank, takes itself for rank 0, and would train alone.
struct ForeignLaunch {
  int rank = 0;           // 0 if the launcher reports none
  std::string complaint;  // the launcher, the environment variable that shows it, and the remedy, in a single line
};

// Returns none unless the environment shows that a launcher started several processes. Variables that describe a batch
// system's allocation (SLURM_NTASKS, PBS_NP) do not show that. The result is valid only if MPI sees a single rank.
// REQUIRES: the first call, whose result later calls return, is before MPI_Init, which changes the environment.
const std::optional<ForeignLaunch>& foreign_launch();
std::optional<ForeignLaunch> find_foreign_launch();  // in the current environment, for tests

// Returns a note if this is a single process in a Slurm allocation with several tasks, which may not be intended; else
// an empty text.
std::string unused_tasks(int world_size);

}  // namespace annulus
