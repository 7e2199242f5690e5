#include <mpi.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"

struct ncclComm {
  MPI_Comm communicator;
  std::atomic<bool> aborted = false;
};

namespace {

// By address, with their communicators.
std::map<void*, ncclComm_t>& registered() {
  static std::map<void*, ncclComm_t> all;
  return all;
}

bool has_registered(ncclComm_t communicator) {
  return std::ranges::any_of(registered(), [&](const auto& memory) { return memory.second == communicator; });
}

struct PlaceIn {
  int rank, size;
};

PlaceIn place_in(ncclComm_t communicator) {
  PlaceIn place{};
  MPI_Comm_rank(communicator->communicator, &place.rank);
  MPI_Comm_size(communicator->communicator, &place.size);
  return place;
}

// Begins an operation of MPI.
using Begin = std::function<void(MPI_Request*)>;

// The operations between the calls for a group; the program's are of one communicator, on one stream.
struct Group {
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Begin> operations;
};
thread_local std::optional<Group> group;

// Runs the operations on the stream, all at the same time.
void enqueue(const Group& together) {
  emulated::enqueue(together.stream, [together] {
    std::vector<MPI_Request> requests(together.operations.size(), MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < requests.size(); ++i) together.operations[i](&requests[i]);
    int done = 0;
    while (MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
           done == 0 && !together.communicator->aborted)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  });
}

ncclResult_t enqueue(ncclComm_t communicator, cudaStream_t stream, const Begin& begin) {
  if (!group) {
    enqueue({communicator, stream, {begin}});
    return ncclSuccess;
  }
  if (!group->operations.empty() && (group->communicator != communicator || group->stream != stream))
    return ncclInvalidArgument;
  group->communicator = communicator;
  group->stream = stream;
  group->operations.push_back(begin);
  return ncclSuccess;
}

// ANNULUS_EMULATED_NO_NCCL: the rank on which communicators cannot be made.
bool fails_here() {
  const char* const failing = std::getenv("ANNULUS_EMULATED_NO_NCCL");
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return failing != nullptr && std::atoi(failing) == rank;
}

// ANNULUS_EMULATED_WRONG_NCCL: the size of arrays from which on all-reduces are wrong, in numbers.
bool adds_wrongly(std::size_t count) {
  const char* const from = std::getenv("ANNULUS_EMULATED_WRONG_NCCL");
  return from != nullptr && count >= std::strtoul(from, nullptr, 10);
}

}  // namespace

// The number of the rank that calls it.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  *id = {};
  std::memcpy(id->internal, &rank, sizeof rank);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->maxCTAs != INT_MIN && config->maxCTAs < 1) return ncclInvalidArgument;
  int color = 0;
  std::memcpy(&color, id.internal, sizeof color);
  auto made = std::make_unique<ncclComm>();
  if (MPI_Comm_split(MPI_COMM_WORLD, color, rank, &made->communicator) != MPI_SUCCESS) return ncclSystemError;
  if (place_in(made.get()).size != ranks || place_in(made.get()).rank != rank) return ncclInvalidArgument;
  if (fails_here()) return ncclSystemError;
  *communicator = made.release();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  if (has_registered(communicator))
    emulated::abort_emulation("a communicator is destroyed before its registered memory");
  MPI_Comm_free(&communicator->communicator);
  delete communicator;
  return ncclSuccess;
}

// Work still on a stream reads it, so it is not freed.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  communicator->aborted = true;
  std::erase_if(registered(), [&](const auto& memory) { return memory.second == communicator; });
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclMemFree(void* memory) {
  if (registered().contains(memory))
    emulated::abort_emulation("memory is freed that is registered with a communicator");
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommRegister(ncclComm_t communicator, void* memory, std::size_t bytes, void** handle) {
  if (!emulated::device_reaches(memory, bytes)) return ncclInvalidArgument;
  registered()[memory] = communicator;
  *handle = memory;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t, void* handle) {
  return registered().erase(handle) == 1 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t, ncclRedOp_t,
                           ncclComm_t communicator, cudaStream_t stream) {
  if (from != to) return ncclInvalidArgument;
  return enqueue(communicator, stream, [=](MPI_Request* request) {
    if (adds_wrongly(count)) static_cast<float*>(emulated::accessible(to))[count / 2] += 1;
    MPI_Iallreduce(MPI_IN_PLACE, emulated::accessible(to), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                   communicator->communicator, request);
  });
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t own_count, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t communicator, cudaStream_t stream) {
  const auto [rank, size] = place_in(communicator);
  if (static_cast<const float*>(from) + static_cast<std::size_t>(rank) * own_count != to) return ncclInvalidArgument;
  return enqueue(communicator, stream, [=, size = size](MPI_Request* request) {
    // The sums of the other chunks are undefined.
    MPI_Iallreduce(MPI_IN_PLACE, const_cast<void*>(emulated::accessible(from)), static_cast<int>(own_count) * size,
                   MPI_FLOAT, MPI_SUM, communicator->communicator, request);
  });
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t own_count, ncclDataType_t, ncclComm_t communicator,
                           cudaStream_t stream) {
  if (static_cast<float*>(to) + static_cast<std::size_t>(place_in(communicator).rank) * own_count != from)
    return ncclInvalidArgument;
  return enqueue(communicator, stream, [=](MPI_Request* request) {
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_FLOAT, emulated::accessible(to), static_cast<int>(own_count), MPI_FLOAT,
                   communicator->communicator, request);
  });
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t, ncclRedOp_t, int root,
                        ncclComm_t communicator, cudaStream_t stream) {
  if (from != to) return ncclInvalidArgument;
  const bool is_root = place_in(communicator).rank == root;
  return enqueue(communicator, stream, [=](MPI_Request* request) {
    void* const values = emulated::accessible(to);
    MPI_Ireduce(is_root ? MPI_IN_PLACE : values, values, static_cast<int>(count), MPI_FLOAT, MPI_SUM, root,
                communicator->communicator, request);
  });
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  if (from != to) return ncclInvalidArgument;
  return enqueue(communicator, stream, [=](MPI_Request* request) {
    MPI_Ibcast(emulated::accessible(to), static_cast<int>(count), MPI_FLOAT, root, communicator->communicator, request);
  });
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  if (type != ncclUint8 || !emulated::device_reaches(from, count)) return ncclInvalidArgument;
  return enqueue(communicator, stream, [=](MPI_Request* request) {
    MPI_Isend(emulated::accessible(from), static_cast<int>(count), MPI_BYTE, peer, 0, communicator->communicator,
              request);
  });
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) {
  if (type != ncclUint8 || !emulated::device_reaches(to, count)) return ncclInvalidArgument;
  return enqueue(communicator, stream, [=](MPI_Request* request) {
    MPI_Irecv(emulated::accessible(to), static_cast<int>(count), MPI_BYTE, peer, 0, communicator->communicator,
              request);
  });
}

ncclResult_t ncclGroupStart() {
  if (group) return ncclInvalidArgument;
  group.emplace();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (!group) return ncclInvalidArgument;
  if (!group->operations.empty()) enqueue(*group);
  group.reset();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) {
  return "an error of the emulation's";
}

const char* ncclGetLastError(ncclComm_t) {
  return "";
}
