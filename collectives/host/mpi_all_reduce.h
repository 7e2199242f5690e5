#pragma once

#include "collectives/all_reduce_algorithm.h"
#include "collectives/world/mpi.h"
#include "collectives/world/world.h"

namespace annulus {

// MPI_Allreduce, in place: the baseline for the ring, and the best choice on a network that the MPI library supports
// natively. The calling thread's core is busy until it returns.
class MpiAllReduce final : public AllReduceAlgorithm {
 public:
  explicit MpiAllReduce(const World& world)
      : AllReduceAlgorithm({"MPI_Allreduce"}), communicator_(world.communicator()) {}

  void all_reduce(std::span<float> values) override;
  std::uint64_t bytes_sent() const override { return 0; }  // MPI chooses the algorithm and does not report it

 private:
  Communicator communicator_;
};

}  // namespace annulus
