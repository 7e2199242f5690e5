#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "collectives/world/mpi.h"

namespace annulus {

// The ranks of a run, their placement on nodes, and the few small exchanges that control it. Gradients do not go this
// way (all_reduce.h). All member functions except accessors are collective.
class World {
 public:
  // Every rank of MPI_COMM_WORLD. REQUIRES: an MpiSession. A node is a group of ranks that share memory; if
  // `ranks_per_node` is not 0, groups of that many neighbouring ranks of it count as nodes, which allows multi-node
  // behaviour to be tried on one machine.
  explicit World(int ranks_per_node = 0);

  // Sub-worlds. Collective.
  World node() const;          // the ranks of this node
  World across_nodes() const;  // the ranks with the same local rank, one per node; each counts as a node
  World apart() const;         // all ranks; each counts as a node

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks that share this node's memory
  int local_size() const { return local_size_; }
  bool root() const { return rank_ == 0; }
  // Converts a rank of this world, which may be a sub-world, to its rank in the whole job.
  int rank_in_job(int rank) const { return ranks_in_job_[static_cast<std::size_t>(rank)]; }
  int smallest_node() const { return smallest_node_; }  // number of ranks on the smallest node
  int largest_node() const { return largest_node_; }
  bool one_node() const { return local_size_ == size_; }

  Communicator duplicate() const;  // for use by another thread

  void barrier() const;
  void broadcast(std::span<std::byte> bytes) const;  // from rank 0
  void sum(std::span<double> values) const;          // in place, bit-identical on all ranks
  void sum(std::span<std::int64_t> values) const;
  void maximum(std::span<double> values) const;
  void minimum(std::span<double> values) const;
  std::vector<std::uint64_t> gather(std::uint64_t value) const;  // every rank's value, on every rank
  std::vector<double> gather(double value) const;
  std::vector<double> gather(std::span<const double> values) const;  // equally many from each rank, in rank order
  std::vector<std::byte> gather(std::span<const std::byte> bytes) const;
  std::vector<std::string> gather_texts(const std::string& text) const;  // every rank's, on rank 0 only

  // Runs `attempt`, which may fail on some ranks only. Throws Error on all ranks if it failed on any, so that nobody
  // waits for a rank that has gone. `attempt` must not wait for other ranks.
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
