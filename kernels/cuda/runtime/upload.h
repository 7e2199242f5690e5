#pragma once

#include <array>
#include <span>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// Copies from host memory, which may change once a call returns, while the lane is still computing earlier work. Copies
// go through pinned memory; large copies go on a separate stream to a staging buffer on the GPU, from which the lane
// copies them in order. prefetch() starts this staging before the upload.
class Uploader {
 public:
  Uploader();
  void upload(std::span<const std::byte> host, DeviceView to, cudaStream_t lane);
  void prefetch(std::span<const std::byte> host);  // see Device::prefetch()

 private:
  struct Slot {
    Buffer pinned;
    Event copied = make_event();    // `pinned` may be overwritten after it
    Buffer staged;                  // for large copies
    Event consumed = make_event();  // `staged` may be overwritten after it
  };
  static constexpr std::size_t kLarge = 64 * 1024;

  void upload_large(std::span<const std::byte> host, DeviceView to, cudaStream_t lane);
  void stage(std::span<const std::byte> host, Slot& slot);

  // Small copies are done by the lane itself, maybe some steps later.
  std::array<Slot, 32> small_;
  std::array<Slot, 2> large_;
  std::size_t next_small_ = 0, next_large_ = 0;
  std::span<const std::byte> prefetched_;  // staged in the next large slot; empty: nothing
  Stream stream_ = make_stream();
};

}  // namespace annulus::cuda
