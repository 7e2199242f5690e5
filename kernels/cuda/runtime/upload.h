#pragma once

#include <array>
#include <span>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// Copies from the host, whose memory may change once a call returns, while the lane is still computing what came
// before: through pinned memory, and large ones on a stream of their own to a second place on the GPU, from where the
// lane takes them when it comes to it.
class Uploader {
 public:
  Uploader();
  void upload(std::span<const std::byte> host, DeviceView to, cudaStream_t lane);

 private:
  struct Slot {
    Buffer pinned;
    Event copied = make_event();    // from pinned, which may be overwritten then
    Buffer staged;                  // of large ones
    Event consumed = make_event();  // likewise
  };
  static constexpr std::size_t kLarge = 64 * 1024;

  void upload_large(std::span<const std::byte> host, DeviceView to, cudaStream_t lane);

  // What is small is copied by the lane itself, maybe some steps later.
  std::array<Slot, 32> small_;
  std::array<Slot, 2> large_;
  std::size_t next_small_ = 0, next_large_ = 0;
  Stream stream_ = make_stream();
};

}  // namespace annulus::cuda
