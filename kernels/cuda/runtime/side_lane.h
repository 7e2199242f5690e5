#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// A stream beside a device's lane, of higher priority, for what goes on while the lane computes. Its work comes in
// numbered pieces: a piece begins after all that the lane had been given when begin() was called, and the lane can
// wait for a piece's end. No call waits for the GPU. Used by one thread at a time.
class SideLane {
 public:
  explicit SideLane(cudaStream_t lane);  // of the device that is current

  cudaStream_t stream() const { return stream_.get(); }

  void begin();
  std::uint64_t end();  // the piece's number; the first is 1

  void join(std::uint64_t piece);         // what the lane is given from now on comes after the piece
  bool begun(std::uint64_t piece) const;  // whether the lane has come to where begin() was called
  bool done(std::uint64_t piece) const;

 private:
  // Of so many pieces the events are kept. A number that is older stands for one that came later, which is as right.
  static constexpr std::uint64_t kRemembered = 256;

  struct Piece {
    Event begun, done;
  };
  const Piece& piece(std::uint64_t number) const { return pieces_[number % kRemembered]; }

  cudaStream_t lane_;
  std::vector<Piece> pieces_;
  Stream stream_;
  std::uint64_t last_ = 0;
};

bool done(cudaEvent_t event);  // whether what was before it is

// For the way out of an error: until the stream's work is done, or has failed. `hasten`, which throws nothing, is
// called before each look. Ends the process where it takes too long: freeing memory would wait for the stream, without
// end.
void drain_or_exit(cudaStream_t stream, const std::function<void()>& hasten);

}  // namespace annulus::cuda
