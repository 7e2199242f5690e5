#pragma once

namespace annulus {

// Whether an MPI call has ever failed in this process (check() in mpi.h): a rank may have been lost.
bool mpi_has_failed();

}  // namespace annulus
