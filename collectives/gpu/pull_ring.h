#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/gpu/stream_algorithm.h"
#include "collectives/gpu/stream_flags.h"
#include "kernels/base/split.h"

namespace annulus {

// Queues a rank's part in the ring (collectives/gpu/ipc_ring.h) on a stream, given the addresses of both neighbours'
// arrays and flags.
class PullRing {
 public:
  // Each rank's flags, in the rank's GPU memory: the rank's stream reads them, the neighbours raise them.
  struct Flags {
    alignas(128) std::uint32_t ready;     // exchanges that the previous rank has completed, over all all-reduces
    alignas(128) std::uint32_t consumed;  // all-reduces on this rank that the next rank has read
  };
  struct FlagsOf {
    Flags *previous, *own, *next;
  };

  // An all-reduce.
  struct Job {
    Verb verb;
    std::size_t segments;  // per chunk
    std::uint32_t begun;   // value of "ready" when the array's own share is ready
    std::uint32_t number;  // value of "consumed" at the end
  };

  PullRing(std::size_t rank, std::size_t size, const FlagsOf& flags, std::size_t segment_bytes, cudaStream_t stream)
      : rank_(rank), size_(size), flags_(flags), segment_bytes_(segment_bytes), stream_(stream) {}

  // `ready`: the highest value so far; `number`: the all-reduce, counted from 1.
  Job plan(std::size_t count, Verb verb, std::uint32_t ready, std::uint32_t number) const;
  void put(float* own, const float* previous, std::size_t count, const Job& job) const;

  std::uint32_t exchanges(const Job& job) const;
  // Returns the value of "ready" that an exchange waits for.
  static std::uint32_t ready_for(const Job& job, std::uint32_t exchange);
  Range chunk(std::size_t count, std::size_t number) const;  // in floats of an array

  const cuda::StreamFlags& stream_flags() const { return stream_flags_; }

 private:
  enum class Pull { add, replace };

  // Returns the next exchange after this chunk's exchanges, which begin with `exchange`.
  std::uint32_t pull_chunk(float* own, const float* previous, const Range& chunk, const Job& job,
                           std::uint32_t exchange, Pull pull) const;
  void notify_next(std::uint32_t ready) const { stream_flags_.write(stream_, &flags_.next->ready, ready); }

  const std::size_t rank_, size_;
  const FlagsOf flags_;
  const std::size_t segment_bytes_;
  const cudaStream_t stream_;
  const cuda::StreamFlags stream_flags_;
};

}  // namespace annulus
