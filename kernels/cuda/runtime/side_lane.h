#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace annulus::cuda {

// A stream with higher priority beside a device's lane, for work that overlaps with the lane's computation. Work is
// divided into numbered pieces: a piece begins after all work that was on the lane when begin() was called, and the
// lane can wait for a piece's end. No call waits for the GPU. Used by one thread at a time.
class SideLane {
 public:
  explicit SideLane(Device& device);  // the current device

  cudaStream_t stream() const { return stream_.get(); }

  void begin();
  std::uint64_t end();  // returns the piece's number, from 1

  void join(std::uint64_t piece);         // work enqueued on the lane from now on waits for the piece
  bool begun(std::uint64_t piece) const;  // whether the lane has reached the point of begin()
  bool done(std::uint64_t piece) const;

 private:
  // How many pieces' events are kept. A later piece reuses an older piece's events, and waiting for these is correct
  // too.
  static constexpr std::uint64_t kRemembered = 256;

  struct Piece {
    Event begun, done;
  };
  const Piece& piece(std::uint64_t number) const { return pieces_[number % kRemembered]; }

  Device& device_;
  std::vector<Piece> pieces_;
  Stream stream_;
  std::uint64_t last_ = 0;
};

bool done(cudaEvent_t event);  // whether the work before it is done

// For cleanup after an error: waits until the stream's work is done or has failed. Calls `hasten`, which must not
// throw, before each check. Ends the process if this takes too long, because freeing memory would wait for the stream
// forever.
void drain_or_exit(cudaStream_t stream, const std::function<void()>& hasten);

}  // namespace annulus::cuda
