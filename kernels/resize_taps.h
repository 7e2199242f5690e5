#pragma once

#include <vector>

#include "kernels/operation.h"

namespace annulus {

// The input pixels that an output pixel of a Resize samples along one axis, and their weights, whose sum is 1.
struct ResizeTap {
  std::size_t first, second;
  float first_weight, second_weight;
};

// The taps of each output pixel along an axis of images {batch, channels, height, width}.
std::vector<ResizeTap> row_taps(const Resize& resize, const Shape& images);
std::vector<ResizeTap> column_taps(const Resize& resize, const Shape& images);

}  // namespace annulus
