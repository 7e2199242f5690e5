#include "collectives/gpu/stream_algorithm.h"

#include <exception>

#include "kernels/base/clock.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {

void StreamAlgorithm::abandon() noexcept {
  cuda::drain_or_exit(stream_, [this] { end_waits(); });
}

bool StreamAlgorithm::leave() noexcept {
  constexpr double kIdleAfterItsLastEvent = 1e-3;  // seconds
  const double begun = now_seconds();
  cudaError_t state = cudaErrorNotReady;
  while (std::uncaught_exceptions() == 0 && state == cudaErrorNotReady &&
         now_seconds() - begun < kIdleAfterItsLastEvent)
    state = cudaStreamQuery(stream_);
  if (state == cudaSuccess) return false;
  abandon();
  return true;
}

}  // namespace annulus
