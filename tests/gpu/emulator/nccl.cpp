#include <mpi.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"

struct ncclComm {
  MPI_Comm communicator;
  std::atomic<bool> aborted = false;
};

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId, int) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != ranks) return ncclInvalidArgument;
  *communicator = new ncclComm{};
  return MPI_Comm_dup(MPI_COMM_WORLD, &(*communicator)->communicator) == MPI_SUCCESS ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  MPI_Comm_free(&communicator->communicator);
  delete communicator;
  return ncclSuccess;
}

// Work still on a stream reads it, so it is not freed.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  communicator->aborted = true;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t, ncclRedOp_t,
                           ncclComm_t communicator, cudaStream_t stream) {
  if (from != to) return ncclInvalidArgument;
  emulated::enqueue(stream, [=] {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, emulated::accessible(to), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                   communicator->communicator, &request);
    int done = 0;
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0 && !communicator->aborted)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  });
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) {
  return "an error of the emulation's";
}

const char* ncclGetLastError(ncclComm_t) {
  return "";
}
