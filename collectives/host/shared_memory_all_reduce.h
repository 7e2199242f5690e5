#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/all_reduce_algorithm.h"
#include "collectives/call.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/node_barrier.h"
#include "collectives/world/shared_memory.h"
#include "kernels/base/split.h"

namespace annulus {

// The all-reduce between ranks that share memory: nothing is sent, every rank adds directly in all ranks' arrays.
//
// An array is cut into a chunk per rank. A rank sums that chunk over every rank's array and writes the result into
// every rank's array. For four ranks a, b, c, d:
//
//                chunk 0            chunk 1            chunk 2            chunk 3
//    rank a      a0+b0+c0+d0        |                  |                  |
//    rank b      = by rank a, into  a1+b1+c1+d1        |                  |
//    rank c      all four arrays    by rank b          a2+b2+c2+d2        |
//    rank d                                            by rank c          a3+b3+c3+d3 by rank d
//
// This takes a single pass over memory, while a ring makes 2(N-1) steps, and two barriers: first until every rank's
// array is ready, at the end until every rank's chunk is. Each element is summed by a single rank, so the result is
// bit-identical on all ranks. The chunks are the ring's, and each is summed in ring order, starting with the rank that
// has the chunk's index: the same bits as the ring's on a single node, so different runs may use either.
//
// Small arrays: every rank copies its array to shared memory, waits until all have, and sums all copies for itself.
// That takes more additions but a single barrier, and barriers dominate the time for small arrays. On a single node
// both ways give the same bits, so the size below which an array is small can be measured: it depends on how fast cores
// see each other's writes, and on whether ranks share cores.
//
// Several nodes: before a node's chunk sum is written to the node's arrays, it is all-reduced over the nodes by another
// algorithm, between the ranks that have this chunk. So a node's network link carries each element once instead of once
// per rank, and all the node's ranks share the work of sending. (Small arrays are sent whole by every rank.)
//
// Arrays in shared memory are summed in place; arrays elsewhere are staged through it piece by piece, with the same
// bits on a single node, where allocate() takes ordinary memory if the system has too little shared memory. In the
// first barrier the ranks compare their calls, and learn whether all arrays are in shared memory.
class SharedMemoryAllReduce final : public AllReduceAlgorithm {
 public:
  // The largest small array. On several nodes it is always kSmallBytes, because there it affects the bits. On a single
  // node measure_small() chooses it between the two limits.
  static constexpr std::size_t kSmallBytes = 8 * 1024;
  static constexpr std::size_t kLeastSmallBytes = 64, kMostSmallBytes = 64 * 1024;

  // `across_nodes`: null if there is a single node.
  SharedMemoryAllReduce(World node, std::unique_ptr<AllReduceAlgorithm> across_nodes,
                        std::shared_ptr<AllReduceContext> context);

  // Measures up to which size, in bytes, handling an array as small is not slower, sets that, and returns it. Only on a
  // single node. Takes some milliseconds. Collective; the same on every rank.
  std::size_t measure_small();
  void set_small_bytes(std::size_t bytes) { small_bytes_ = bytes; }  // at most kMostSmallBytes; the same on every rank

  void run(std::span<float> values, const Collective& collective) override;
  // Runs any operation on elements of any type. Throws CallMismatch if the ranks call different operations. REQUIRES: a
  // single node, or an all-reduce that sums fp32.
  void run(const Call& call);
  Range chunk(std::size_t count) const override;
  std::span<std::byte> allocate(std::size_t bytes, Memory memory) override;
  SharedMemory* shared_memory() override { return &memory_; }
  std::string way() const override;
  bool common() const override { return !across_nodes_ && !common_elsewhere_; }
  std::uint64_t bytes_sent() const override { return across_nodes_ ? across_nodes_->bytes_sent() : 0; }

 private:
  // `count` elements from every rank's array with `whole` elements, starting at `begin`.
  struct Piece {
    std::span<std::byte* const> everywhere;
    const ReductionLoops& loops;
    std::size_t count, begin, whole;

    Range part_of(const Range& chunk) const;              // of the whole array that is in this piece
    void reduce(const Range& part, std::byte* to) const;  // in ring order
    std::byte* at(std::size_t rank, std::size_t element) const {
      return everywhere[rank] + element * loops.element_bytes;
    }
  };

  std::size_t own() const { return static_cast<std::size_t>(memory_.node().rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(memory_.node().size()); }
  bool meet(const Call& call, std::optional<SharedMemory::Place> place, std::size_t barriers);

  void reduce(const Call& call);
  void reduce_scatter(std::span<float> values);
  void all_gather(std::span<float> values);
  void reduce_copies(const Call& call);
  void in_pieces(const Call& call, std::size_t barriers,
                 const std::function<void(const Piece& piece, bool staged)>& run);
  void reduce_chunk(const Piece& piece, const Range& chunk);
  void reduce_own_chunk(const Piece& piece, const Range& chunk);
  void sum_chunk_across_nodes(const Piece& piece, const Range& chunk);

  // In shared_memory_calls.cpp.
  struct Exchange;
  void exchange(const Call& call, const Exchange& exchange);
  void reduce_scatter(const Call& call);
  void all_gather(const Call& call);
  void broadcast(const Call& call);

  SharedMemory memory_;  // before the members that may still send from it
  std::unique_ptr<AllReduceAlgorithm> across_nodes_;
  NodeBarrier barrier_;
  std::vector<std::byte*> arrays_;                     // every rank's, after meet(); null if it is elsewhere
  std::span<std::byte> copies_[2];                     // for small arrays; used alternately
  std::span<std::byte> stage_;                         // for pieces, if arrays are in other memory
  bool elsewhere_ = false, common_elsewhere_ = false;  // whether allocate() found too little shared memory
  std::size_t small_bytes_ = kSmallBytes;
  std::size_t small_ones_ = 0;  // so far
};

}  // namespace annulus
