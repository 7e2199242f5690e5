#pragma once

#include <optional>

namespace annulus {

// Returns this process's rank if mpirun, mpiexec or srun started it, as far as this is known before MPI_Init. None if
// no launcher did: a rank left over in the environment does not count without other traces of the launcher.
std::optional<int> launched_rank();

// Returns its place among the ranks of its node, likewise.
std::optional<int> launched_local_rank();

// Waits, so that the first rank can report an error that most probably all ranks have (a missing file), and end them.
void let_first_rank_report();

}  // namespace annulus
