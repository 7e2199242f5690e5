#pragma once

#include "collectives/all_reduce_algorithm.h"
#include "collectives/world/mpi.h"
#include "collectives/world/world.h"

namespace annulus {

// MPI_Allreduce, in place: the baseline for the ring, and the best choice on a network that the MPI library supports
// natively. The calling thread's core is busy until it returns.
class MpiAllReduce final : public AllReduceAlgorithm {
 public:
  MpiAllReduce(const World& world, std::shared_ptr<AllReduceContext> context)
      : AllReduceAlgorithm({"MPI_Allreduce"}, std::move(context)), communicator_(world.communicator()) {}

  void run(std::span<float> values, const Collective& collective) override;
  std::uint64_t bytes_sent() const override { return 0; }  // MPI chooses the algorithm and does not report it

 private:
  Communicator communicator_;
};

}  // namespace annulus
