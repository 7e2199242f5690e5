#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// Flags: 32-bit counters in GPU memory by which the streams of several processes wait for each other, without a kernel
// that spins. (The driver's "stream memory operations"; found at run time, as only the driver has them.)
//
// A flag only ever grows. It may wrap around: values are compared by their signed distance, so a wait must not look
// further than 2^31 ahead.
class StreamFlags {
 public:
  StreamFlags();  // throws Error where this driver or GPU has none

  // The stream's next work begins when the flag is at `value` or beyond. `flag`: of this GPU's own memory.
  void wait(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value) const;
  // When the stream's work so far is done, and all GPUs see what it wrote. `flag`: this GPU's or a mapped one's.
  void write(cudaStream_t stream, std::uint32_t* flag, std::uint32_t value) const;

  static bool reached(std::uint32_t flag, std::uint32_t value) { return static_cast<std::int32_t>(flag - value) >= 0; }

 private:
  void* wait_ = nullptr;
  void* write_ = nullptr;
};

}  // namespace annulus::cuda
