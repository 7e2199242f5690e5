#include "collectives/gpu/stream_algorithm.h"

#include <exception>

#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {

void StreamAlgorithm::abandon() noexcept {
  cuda::drain_or_exit(stream_, [this] { end_waits(); });
}

bool StreamAlgorithm::leave() noexcept {
  if (std::uncaught_exceptions() == 0 && cudaStreamQuery(stream_) == cudaSuccess) return false;
  abandon();
  return true;
}

}  // namespace annulus
