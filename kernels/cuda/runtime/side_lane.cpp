#include "kernels/cuda/runtime/side_lane.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/cuda/runtime/compute_lane.h"

namespace annulus::cuda {

SideLane::SideLane(Device& device) : device_(device), pieces_(kRemembered), stream_(make_stream(true)) {
  for (Piece& piece : pieces_) piece = {make_event(), make_event()};
}

void SideLane::begin() {
  cudaEvent_t begun = piece(last_ + 1).begun.get();
  check(cudaEventRecord(begun, compute_lane(device_)));
  check(cudaStreamWaitEvent(stream(), begun));
}

std::uint64_t SideLane::end() {
  check(cudaEventRecord(piece(++last_).done.get(), stream()));
  return last_;
}

void SideLane::join(std::uint64_t piece) {
  check(cudaStreamWaitEvent(compute_lane(device_), this->piece(piece).done.get()));
}

bool SideLane::begun(std::uint64_t piece) const {
  return cuda::done(this->piece(piece).begun.get());
}

bool SideLane::done(std::uint64_t piece) const {
  return cuda::done(this->piece(piece).done.get());
}

bool done(cudaEvent_t event) {
  const cudaError_t result = cudaEventQuery(event);
  if (result == cudaErrorNotReady) return false;
  check(result);
  return true;
}

void drain_or_exit(cudaStream_t stream, const std::function<void()>& hasten) {
  constexpr double kSeconds = 10;  // the lane may have seconds of work that the side lane waits for
  const double begun = now_seconds();
  for (hasten(); cudaStreamQuery(stream) == cudaErrorNotReady; hasten()) {
    if (now_seconds() - begun > kSeconds) {
      fmt::print(stderr, "annulus: a GPU is still busy {} s after an error; ending this process\n", kSeconds);
      std::fflush(stderr);
      std::_Exit(EXIT_FAILURE);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace annulus::cuda
