#pragma once

#include "kernels/cuda/ops/loops/strided_loops.h"
#include "kernels/cuda/ops/loops/vectors.h"

namespace annulus::cuda {

// Padding becomes zero.
template <class T>
__device__ Vector<T> load(const T* from, const Lanes& lanes) {
  Vector<T> values{};
  if (lanes.stride == 1 && lanes.offset % kLanes<T> == 0) {
    values = load(from, static_cast<std::size_t>(lanes.offset) / kLanes<T>);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] = k < lanes.used ? values.at[k] : 0;
    return values;
  }
  for (unsigned k = 0; k < kLanes<T>; ++k)
    if (k < lanes.used) values.at[k] = static_cast<float>(from[lanes.offset + k * lanes.stride]);
  return values;
}

}  // namespace annulus::cuda
