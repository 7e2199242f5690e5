#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/runtime/lane_clock.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device.h"

namespace annulus::cuda {

// Captures, as a CUDA graph, the work that work() puts on the stream, without doing it. Each replay costs a single
// launch. A mark in the work is a node that records an event: each replay reserves the clock's next marks, and gives
// the nodes their events.
class Recorder {
 public:
  Recorder(cudaStream_t stream, LaneClock& clock) : stream_(stream), clock_(clock) {}

  std::unique_ptr<Recording> record(const std::function<void()>& work);
  void mark();  // to be called by work()

 private:
  cudaStream_t stream_;
  LaneClock& clock_;
  std::vector<Event> marks_;  // placeholders in the graph
};

}  // namespace annulus::cuda
