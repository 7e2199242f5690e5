#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// Reports when streams' work reached marks, on the host's clock (now_seconds()). Not thread-safe.
class LaneClock {
 public:
  LaneClock();

  // Puts a mark after all work that has been enqueued on the stream. Returns the mark's number, from 1. Only the last
  // kRemembered marks are kept.
  std::uint64_t mark(cudaStream_t stream);
  // Reserves the next mark for the caller, who records event() on a stream, by launching a graph.
  std::uint64_t reserve();
  cudaEvent_t event(std::uint64_t mark) const;
  double seconds(std::uint64_t mark);                   // waits until the work before it is done
  void await(cudaStream_t stream, std::uint64_t mark);  // later work on the stream waits for it

  static constexpr std::size_t kRemembered = 16384;

 private:
  void rebase();

  std::vector<Event> events_;  // mark n's at n % kRemembered; created by the slot's first mark, as all would take 30 ms
  std::uint64_t last_ = 0;
  // CUDA reports only the time between two events, in float32 milliseconds, which lose microseconds after half an hour.
  // So the event that all others are compared with is replaced from time to time.
  Event base_;
  double base_seconds_;
};

}  // namespace annulus::cuda
