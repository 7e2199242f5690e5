#pragma once

#include <optional>

namespace annulus {

// This process's rank if mpirun, mpiexec or srun started it, as far as can be known before MPI_Init. None if no
// launcher did: a rank that was left in the environment does not count without the launcher's other traces.
std::optional<int> launched_rank();

}  // namespace annulus
