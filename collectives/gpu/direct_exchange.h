#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "collectives/gpu/direct_sum.h"
#include "collectives/gpu/stream_algorithm.h"
#include "collectives/gpu/stream_flags.h"
#include "kernels/base/split.h"

namespace annulus {

// Queues a rank's part in a direct all-reduce (collectives/gpu/direct_all_reduce.h) on a stream, given the addresses of
// all ranks' arrays and flags, in rank order.
class DirectExchange {
 public:
  enum Phase { kReady, kSummed, kRead, kPhases };

  // Each rank's flags: the last all-reduce, by number, in which a peer reached a phase.
  struct Flags {
    std::uint32_t of[kPhases][cuda::kMostPeers];
  };

  using Arrays = std::span<float* const>;

  DirectExchange(std::size_t rank, std::vector<Flags*> flags, cudaStream_t stream)
      : rank_(rank), flags_(std::move(flags)), stream_(stream) {}

  // Returns the phases in which a rank meets the others: the first in a reduce-scatter, the last two in an all-gather,
  // all in an all-reduce.
  static std::span<const Phase> phases_of(Verb verb);

  // `number`: the all-reduce, counted from 1.
  void put(Arrays arrays, std::size_t count, Verb verb, std::uint32_t number) const;
  // Sums a small array, which each rank has copied for the peers: meets the peers once.
  void put_small(float* values, Arrays copies, std::size_t count, std::uint32_t number) const;

  // Returns a rank's chunk of an array, in floats.
  Range chunk(std::size_t count, std::size_t rank) const;

  const cuda::StreamFlags& stream_flags() const { return stream_flags_; }

 private:
  std::size_t size() const { return flags_.size(); }
  void meet(Phase phase, std::uint32_t number) const;  // raises this rank's flags on all peers, and awaits theirs
  void sum_own_chunk(Arrays arrays, std::size_t count) const;
  void pull_other_chunks(Arrays arrays, std::size_t count) const;

  const std::size_t rank_;
  const std::vector<Flags*> flags_;
  const cudaStream_t stream_;
  const cuda::StreamFlags stream_flags_;
};

}  // namespace annulus
