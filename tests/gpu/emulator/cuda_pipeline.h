#pragma once

// CUDA's copies from global to shared memory, which are done at once here.

#include "tests/gpu/emulator/device_language.h"

namespace emulated {

struct alignas(16) Vector16 {
  std::uint64_t at[2];
};

}  // namespace emulated

inline void __pipeline_memcpy_async(void* to, const void* from, std::size_t, std::size_t zeros = 0) {
  *static_cast<emulated::Vector16*>(to) =
      zeros > 0 ? emulated::Vector16{} : *static_cast<const emulated::Vector16*>(from);
}
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(std::size_t) {}
