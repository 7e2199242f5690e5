#pragma once

#include <optional>

namespace annulus {

// Returns this process's rank if mpirun, mpiexec or srun started it, as far as this is known before MPI_Init. None if
// no launcher did: a rank left over in the environment does not count without other traces of the launcher.
std::optional<int> launched_rank();

}  // namespace annulus
