#include <mpi.h>

#include <cstdlib>

#include "tests/gpu/emulator/device_memory.h"

// An MPI library that accepts device addresses in messages if ANNULUS_EMULATED_AWARE is set; in place of the installed
// one, which would fault.

namespace {

bool aware() {
  static const bool set = std::getenv("ANNULUS_EMULATED_AWARE") != nullptr;
  return set;
}

}  // namespace

extern "C" int MPIX_Query_cuda_support() {
  return aware();
}

int MPI_Isend(const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm communicator,
              MPI_Request* request) {
  return PMPI_Isend(aware() ? emulated::accessible(from) : from, count, type, to, tag, communicator, request);
}

int MPI_Irecv(void* to, int count, MPI_Datatype type, int from, int tag, MPI_Comm communicator, MPI_Request* request) {
  return PMPI_Irecv(aware() ? emulated::accessible(to) : to, count, type, from, tag, communicator, request);
}
