#include "collectives/world/abort.h"

#include <mpi.h>

#include <cstdlib>

// MPI_Abort of Open MPI prints a page and then calls this function. Null with other MPI libraries.
extern "C" [[gnu::weak]] int ompi_mpi_abort(MPI_Comm communicator, int status);

namespace annulus {

void abort_job(int status) {
  if (ompi_mpi_abort != nullptr) ompi_mpi_abort(MPI_COMM_WORLD, status);
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

}  // namespace annulus
