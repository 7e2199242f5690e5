#pragma once

#include <optional>

namespace annulus {

// Returns this process's rank if mpirun, mpiexec or srun started it, as far as this is known before MPI_Init. None if
// no launcher did: a rank left over in the environment does not count without other traces of the launcher.
std::optional<int> launched_rank();

// Returns this process's place among the node's ranks, under the same conditions.
std::optional<int> launched_local_rank();

// Whether a launcher with PMIx (Open MPI's, Slurm's plug-in) runs: the PMIx server's folder exists while the job runs.
bool has_pmix_server();
// Whether MPICH's or Intel's launcher runs: the process inherits a connection, or is given a port.
bool has_pmi_server();

// Whether Open MPI 4's mpirun runs without --enable-recovery: it ends the job when any rank dies.
bool mpirun_ends_with_a_rank();

// Waits, so that the first rank can report an error that most probably all ranks have (a missing file), and end them.
void let_first_rank_report();

}  // namespace annulus
