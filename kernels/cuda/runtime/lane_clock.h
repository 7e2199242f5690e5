#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// When the work of streams reached certain places, on the host's clock (now_seconds()). Used by one thread.
class LaneClock {
 public:
  LaneClock();

  // A place after all that has been put on the stream; its number, from 1. Only the last kRemembered are.
  std::uint64_t mark(cudaStream_t stream);
  double seconds(std::uint64_t mark);  // waits until the work before it is done

  static constexpr std::size_t kRemembered = 16384;

 private:
  void rebase();

  std::vector<Event> events_;  // of mark n: n % kRemembered
  std::uint64_t last_ = 0;
  // CUDA tells differences between events only, in float32 milliseconds, which lose microseconds after half an hour:
  // so now and then another event becomes the one that all are compared with.
  Event base_;
  double base_seconds_;
};

}  // namespace annulus::cuda
