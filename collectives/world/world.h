#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "collectives/world/mpi.h"

namespace annulus {

// Everyone who takes part in the run: the ranks, where they sit, and the few small exchanges that steer a run.
// Gradients do not go this way (all_reduce.h). All member functions but the accessors are collective.
class World {
 public:
  // Every rank of MPI_COMM_WORLD; needs an MpiSession. A node is what shares memory, or so many neighbouring ranks of
  // it where `ranks_per_node` is not 0: what several nodes do can be tried on one.
  explicit World(int ranks_per_node = 0);

  // Parts of it, as worlds of their own. Collective.
  World node() const;          // the ranks of this node
  World across_nodes() const;  // the ranks that have this one's local rank on their nodes; one node's ranks are even

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks that share this node's memory
  int local_size() const { return local_size_; }
  bool root() const { return rank_ == 0; }
  // What a rank of this world, which may be a part of another, is called outside.
  int rank_in_job(int rank) const { return ranks_in_job_[static_cast<std::size_t>(rank)]; }
  int smallest_node() const { return smallest_node_; }  // ranks of the node that has the fewest
  int largest_node() const { return largest_node_; }
  bool one_node() const { return local_size_ == size_; }

  Communicator duplicate() const;  // for a thread of its own

  void barrier() const;
  void broadcast(std::span<std::byte> bytes) const;  // from rank 0
  void sum(std::span<double> values) const;          // in place, the same bits on every rank
  void sum(std::span<std::int64_t> values) const;
  void maximum(std::span<double> values) const;
  void minimum(std::span<double> values) const;
  std::vector<std::uint64_t> gather(std::uint64_t value) const;  // every rank's value, on every rank
  std::vector<double> gather(double value) const;
  std::vector<double> gather(std::span<const double> values) const;  // as many of each rank, rank after rank
  std::vector<std::byte> gather(std::span<const std::byte> bytes) const;
  std::vector<std::string> gather_texts(const std::string& text) const;  // every rank's, on rank 0 only

  // For what may fail on some ranks only: throws Error on all of them where it did, so that nobody waits for a rank
  // that has gone. `attempt` waits for no other rank.
  void all_or_none(const std::function<void()>& attempt) const;

 private:
  World(Communicator communicator, int ranks_per_node);

  Communicator communicator_;
  int ranks_per_node_;
  int rank_, size_, local_rank_, local_size_;
  int smallest_node_, largest_node_;
  std::vector<int> ranks_in_job_;
};

}  // namespace annulus
