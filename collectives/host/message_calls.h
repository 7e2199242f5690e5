#pragma once

#include <memory>

#include "collectives/all_reduce_algorithm.h"
#include "collectives/call.h"
#include "collectives/world/mpi.h"
#include "collectives/world/world.h"
#include "kernels/base/host_memory.h"

namespace annulus {

// Collective operations between ranks that do not all share memory. All-reduces that add in float32 are `sums`'; the
// others are MPI's non-blocking collectives, which can be abandoned, unlike the blocking ones.
class MessageCalls {
 public:
  MessageCalls(const World& world, std::unique_ptr<AllReduceAlgorithm> sums);
  ~MessageCalls();
  MessageCalls(const MessageCalls&) = delete;
  MessageCalls& operator=(const MessageCalls&) = delete;

  void run(const Call& call);

 private:
  void all_reduce(const Call& call);
  void reduce_scatter(const Call& call);
  void all_gather(const Call& call);
  void broadcast(const Call& call);
  void reduce_wide(const Reduction& wide, std::byte* values, std::size_t count);
  std::byte* widened(const Call& call, std::size_t count);
  MPI_Op operation(const Reduction& reduction) const;
  void complete(MPI_Request request);

  Communicator communicator_;
  std::unique_ptr<AllReduceAlgorithm> sums_;
  std::size_t ranks_;
  MPI_Op sum_of_bytes_ = MPI_OP_NULL;
  HostArray<std::byte> wide_, part_;
};

}  // namespace annulus
