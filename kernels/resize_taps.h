#pragma once

#include <vector>

#include "kernels/operation.h"

namespace annulus {

// The input pixels that an output pixel of a Resize samples along one axis, and their weights, whose sum is 1.
struct ResizeTap {
  std::size_t first, second;
  float first_weight, second_weight;
};

// Returns the taps of each output pixel of `outputs` along an axis of `inputs` pixels.
std::vector<ResizeTap> resize_taps(const Resize& resize, std::size_t inputs, std::size_t outputs);

}  // namespace annulus
