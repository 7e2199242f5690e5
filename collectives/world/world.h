#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/world/channel.h"

namespace annulus {

// A job's ranks, their placement on nodes, and the few small exchanges for control. Gradients go another way
// (all_reduce.h). All member functions except accessors are collective.
class World {
 public:
  // All ranks in `job`, which must outlive this call only. REQUIRES: an MpiSession. A node is a group of ranks that
  // share memory; if `ranks_per_node` is not 0, every `ranks_per_node` neighbouring ranks on it count as a node, which
  // allows multi-node behaviour to be tried on a single machine.
  explicit World(int ranks_per_node = 0, MPI_Comm job = MPI_COMM_WORLD);
  // All ranks of a carrier between the processes of a single node.
  explicit World(const std::shared_ptr<Carrier>& node);

  // Sub-worlds. Collective.
  World node() const;           // the ranks on this node
  World across_nodes() const;   // the ranks with the same local rank, one per node; each counts as a node
  World apart() const;          // all ranks; each counts as a node
  World block(int size) const;  // the `size` consecutive ranks that this rank is among. REQUIRES: they divide it
  World across_blocks(int size) const;  // the ranks with the same place in their blocks

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_in_job_.size()); }
  int local_rank() const { return local_rank_; }  // among the ranks that share this node's memory
  int local_size() const { return local_size_; }
  bool root() const { return rank_ == 0; }
  // Converts a rank in this world, which may be a sub-world, to the rank in the whole job.
  int rank_in_job(int rank) const { return ranks_in_job_[static_cast<std::size_t>(rank)]; }
  // Returns a number for the rank's node, the same for all ranks on it.
  int node_of(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }
  int smallest_node() const { return smallest_node_; }  // number of ranks on the smallest node
  int largest_node() const { return largest_node_; }
  bool one_node() const { return local_size_ == size(); }

  Channel channel() const;            // for messages between these ranks, by any thread
  Communicator communicator() const;  // for MPI's own collectives. REQUIRES: no rank was lost

  void barrier() const;
  void broadcast(std::span<std::byte> bytes) const;  // from rank 0
  void broadcast(std::string& text) const;           // from rank 0
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

  // Makes all waits for other ranks in this process, in any world or all-reduce, throw Error while it is true. By any
  // thread.
  void interrupt(bool interrupted) const { carrier_->interruption.set(interrupted); }
  bool interrupted() const { return carrier_->interruption.interrupted(); }
  std::shared_ptr<const std::atomic<bool>> interruption() const {
    return {carrier_, &carrier_->interruption.interrupted()};
  }

  // Records the loss of a rank: interrupts, but not before the end of a section that can do without that rank. By any
  // thread.
  void lose(int rank_in_job) const { carrier_->interruption.lose(static_cast<std::size_t>(rank_in_job)); }
  // Whether a rank in this world was lost, and the world not yet continued without it. May change at any time.
  const std::atomic<bool>& lost(int rank) const {
    return carrier_->interruption.lost(static_cast<std::size_t>(rank_in_job(rank)));
  }
  // A section that can do without the first `dispensable` ranks begins, and is complete. Not collective. `number`: the
  // same on all ranks.
  void begin_section(std::uint64_t number, int dispensable) const {
    carrier_->interruption.begin_section(number, std::span(ranks_in_job_).first(static_cast<std::size_t>(dispensable)));
  }
  void end_section() const { carrier_->interruption.end_section(); }
  bool within_section() const { return carrier_->interruption.within_section(); }
  std::uint64_t section() const { return carrier_->interruption.section(); }  // the current or last section's number

  // Continues with these ranks of the job, in ascending order, after other ranks were lost; `losses`: number of losses
  // so far. Ends the interruption. Not collective, but all survivors must call it with the same arguments.
  void continue_with(const std::vector<int>& ranks_in_job, int losses);

 private:
  World(const std::shared_ptr<MpiCarrier>& carrier, int ranks_per_node);
  World(const std::shared_ptr<Carrier>& carrier, std::vector<int> nodes);
  World(std::shared_ptr<Carrier> carrier, int context, std::vector<int> ranks_in_job, std::vector<int> nodes);

  void count_ranks();
  int new_context() const;
  template <class Belongs>
  World part(const Belongs& belongs, bool each_a_node) const;
  std::vector<int> local_ranks() const;

  template <class T, class Combine>
  void reduce(std::span<T> values, const Combine& combine) const;
  template <class T>
  std::vector<T> gather_values(std::span<const T> values) const;

  std::shared_ptr<Carrier> carrier_;
  std::vector<int> ranks_in_job_, nodes_;  // for each rank
  Channel channel_;
  int rank_, local_rank_, local_size_;
  int smallest_node_, largest_node_;
};

}  // namespace annulus
