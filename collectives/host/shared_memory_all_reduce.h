#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "collectives/all_reduce_algorithm.h"
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
// bits on a single node, where allocate() takes ordinary memory if the system has too little shared memory. An array
// must be at the same offset in allocate()'s memory on all ranks.
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
  Range chunk(std::size_t count) const override;
  std::span<std::byte> allocate(std::size_t bytes, Memory memory) override;
  std::string way() const override;
  bool common() const override { return !across_nodes_ && !common_elsewhere_; }
  std::uint64_t bytes_sent() const override { return across_nodes_ ? across_nodes_->bytes_sent() : 0; }

 private:
  // `count` floats from every rank's array with `whole` floats, starting at `begin`.
  struct Piece {
    std::span<std::byte* const> everywhere;
    std::size_t count, begin, whole;

    Range part_of(const Range& chunk) const;       // of the whole array that is in this piece
    void sum(const Range& part, float* to) const;  // sums `part` in ring order
  };

  void sum(std::span<float> values);
  void reduce_scatter(std::span<float> values);
  void all_gather(std::span<float> values);
  void sum_copies(std::span<float> values);
  void sum_in_place(const Piece& piece);
  void in_pieces(std::span<float> values, const std::function<void(const Piece& piece)>& run);
  void sum_chunk(const Piece& piece, const Range& chunk);
  void sum_own_chunk(const Piece& piece, const Range& chunk);
  void sum_chunk_across_nodes(const Piece& piece, const Range& chunk);

  SharedMemory memory_;  // before the members that may still send from it
  std::unique_ptr<AllReduceAlgorithm> across_nodes_;
  NodeBarrier barrier_;
  std::span<std::byte> copies_[2];                     // for small arrays; used alternately
  std::span<std::byte> stage_;                         // for pieces, if arrays are in other memory
  bool elsewhere_ = false, common_elsewhere_ = false;  // whether allocate() found too little shared memory
  std::size_t small_bytes_ = kSmallBytes;
  std::size_t small_ones_ = 0;  // so far
};

}  // namespace annulus
