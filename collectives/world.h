#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/mpi.h"

namespace annulus {

// Everyone who takes part in the run: the ranks, where they sit, and the few small exchanges that steer a run.
// Gradients do not go this way (all_reduce.h). All member functions but the accessors are collective.
class World {
 public:
  World();  // every rank of MPI_COMM_WORLD; needs an MpiSession

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks that share this node's memory
  int local_size() const { return local_size_; }
  bool root() const { return rank_ == 0; }

  Communicator duplicate() const;  // for a thread of its own

  void barrier() const;
  void broadcast(std::span<std::byte> bytes) const;  // from rank 0
  void sum(std::span<double> values) const;          // in place, the same bits on every rank
  void sum(std::span<std::int64_t> values) const;
  void maximum(std::span<double> values) const;
  std::vector<std::uint64_t> gather(std::uint64_t value) const;  // every rank's value, on every rank
  std::vector<double> gather(double value) const;

 private:
  Communicator communicator_;
  int rank_, size_, local_rank_, local_size_;
};

}  // namespace annulus
