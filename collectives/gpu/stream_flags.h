#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// Flags: 32-bit counters in GPU memory by which several processes' streams wait for each other, without spinning
// kernels. (The driver's "stream memory operations"; looked up at run time, since only the driver has them.)
//
// A flag only grows. It may wrap around: values are compared by their signed distance, so a wait must be for a value
// less than 2^31 ahead.
class StreamFlags {
 public:
  StreamFlags();  // throws Error if this driver or GPU does not support them

  // Later work on the stream begins when the flag is at `value` or beyond. `flag`: in this GPU's own memory.
  void wait(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value) const;
  // Writes the flag when the stream's work so far is done and visible to all GPUs. `flag`: in this GPU's memory or
  // mapped from another.
  void write(cudaStream_t stream, std::uint32_t* flag, std::uint32_t value) const;

  // Writes all flags in `raise`, then waits for all in `await`, in a single driver call; at most kMostFlags each.
  static constexpr std::size_t kMostFlags = 32;
  void exchange(cudaStream_t stream, std::span<std::uint32_t* const> raise, std::span<const std::uint32_t* const> await,
                std::uint32_t value) const;

  static bool reached(std::uint32_t flag, std::uint32_t value) { return static_cast<std::int32_t>(flag - value) >= 0; }

 private:
  void* wait_ = nullptr;
  void* write_ = nullptr;
  void* batch_ = nullptr;
};

}  // namespace annulus::cuda
