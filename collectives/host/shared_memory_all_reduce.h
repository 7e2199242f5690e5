#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "collectives/all_reduce_algorithm.h"
#include "collectives/world/backoff.h"
#include "collectives/world/shared_counter.h"
#include "collectives/world/shared_memory.h"
#include "kernels/base/split.h"

namespace annulus {

// The all-reduce of ranks that see each other's memory: nothing is sent, every rank adds where the arrays lie.
//
// An array is cut into as many chunks as there are ranks. A rank adds up its chunk out of every rank's array and writes
// the sum into every rank's array. For four ranks a, b, c, d:
//
//                chunk 0            chunk 1            chunk 2            chunk 3
//    rank a      a0+b0+c0+d0        |                  |                  |
//    rank b      = by rank a, into  a1+b1+c1+d1        |                  |
//    rank c      all four arrays    by rank b          a2+b2+c2+d2        |
//    rank d                                            by rank c          a3+b3+c3+d3 by rank d
//
// One pass over memory where a ring makes 2(N-1) steps, and two moments of waiting: before, until every rank's array
// is there, and after, until every rank's chunk is. Each element is added by one rank, so all ranks have the same bits.
// The chunks are the ring's, and each is added up as it is there, from the rank of its number on and round to the one
// before: the same bits as the ring's on one node, so a run may take now the one and now the other.
//
// Small arrays: every rank copies its array to a place where all see it, waits until all have, and adds up all copies
// for itself. That is more additions, but only one moment of waiting, and it is waiting that a small array is made of.
// On one node both ways give the same bits, so up to which size an array is small can be measured: it depends on how
// long cores take to see each other's writes, and on whether ranks must share cores.
//
// Several nodes: before it is written everywhere, each node's sum of a chunk is added up over the nodes by another
// algorithm, between the ranks that have this chunk on their nodes. So a node's wire carries each element once and not
// once for every rank, and all ranks of a node share the work of sending. (Small arrays go over the wire whole, by
// every rank of a node alike.)
//
// Arrays in allocate()'s memory are added where they lie; others go through there piece by piece. An array must lie at
// the same place in that memory on all ranks.
class SharedMemoryAllReduce final : public AllReduceAlgorithm {
 public:
  // Up to which size every rank adds for itself: on several nodes always up to kSmallBytes, as that decides about bits.
  // On one node the two others are the least and the most that measure_small() chooses from.
  static constexpr std::size_t kSmallBytes = 8 * 1024;
  static constexpr std::size_t kLeastSmallBytes = 64, kMostSmallBytes = 64 * 1024;

  // `across_nodes`: null where all ranks are on one node.
  SharedMemoryAllReduce(World node, std::unique_ptr<AllReduceAlgorithm> across_nodes, std::shared_ptr<Backoff> backoff);

  // Measures up to which size, in bytes, adding for itself is not slower, and sets that. Only on one node. Takes some
  // milliseconds. Collective; the same on every rank.
  std::size_t measure_small();
  void set_small_bytes(std::size_t bytes) { small_bytes_ = bytes; }  // at most kMostSmallBytes; the same on every rank

  void sum(std::span<float> values) override;
  std::string order() const override;
  std::optional<std::size_t> crossover() const override {
    return across_nodes_ ? across_nodes_->crossover() : std::nullopt;
  }
  std::span<std::byte> allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  std::uint64_t bytes_sent() const override { return across_nodes_ ? across_nodes_->bytes_sent() : 0; }
  void record_to(TraceLane* lane) override;

 private:
  struct Signals {
    SharedCounter arrived;  // the array of this sum may be read
    SharedCounter done;     // this rank's chunk of it is complete
  };

  // `count` floats of every rank's array, of `whole`, in which they begin at `begin`.
  struct Piece {
    std::span<std::byte* const> everywhere;
    std::size_t count, begin, whole;

    void sum(const Range& part, float* to) const;  // a part of this piece, in the ring's order
  };

  void sum_copies(std::span<float> values);
  void sum_in_place(const Piece& piece);
  void sum_chunk(const Piece& piece, const Range& chunk);
  void sum_chunk_across_nodes(const Piece& piece, const Range& chunk);
  void sum_staged(std::span<float> values);
  void await_all(SharedCounter Signals::*signal, std::size_t barrier, std::size_t barriers) const;
  Signals& signals(int rank) const { return *signals_[static_cast<std::size_t>(rank)]; }

  SharedMemory memory_;  // before what may still send from it
  std::unique_ptr<AllReduceAlgorithm> across_nodes_;
  std::shared_ptr<Backoff> backoff_;
  std::vector<Signals*> signals_;
  std::span<std::byte> copies_[2];  // of small arrays; taken in turns
  std::span<std::byte> stage_;      // for pieces of arrays that lie elsewhere
  std::size_t small_bytes_ = kSmallBytes;
  std::uint32_t sums_ = 0;  // so far
};

}  // namespace annulus
