#pragma once

#include "collectives/all_reduce_algorithm.h"
#include "collectives/world/mpi.h"
#include "collectives/world/world.h"

namespace annulus {

// MPI_Allreduce, in place: what the ring is compared with, and what is best on a network that the MPI library knows.
// The calling thread's core is busy until it returns.
class MpiAllReduce final : public AllReduceAlgorithm {
 public:
  explicit MpiAllReduce(const World& world) : communicator_(world.duplicate()) {}

  void sum(std::span<float> values) override;
  std::string order() const override { return "MPI_Allreduce"; }
  std::uint64_t bytes_sent() const override { return 0; }  // MPI chooses the algorithm, and does not say which

 private:
  Communicator communicator_;
};

}  // namespace annulus
