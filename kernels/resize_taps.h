#pragma once

#include <vector>

#include "kernels/operation.h"

namespace annulus {

// The input pixels that a Resize's output pixel samples along an axis, and their weights, which sum to 1.
struct ResizeTap {
  std::size_t first, second;
  float first_weight, second_weight;
};

// Returns each output pixel's taps along an axis of images {batch, channels, height, width}.
std::vector<ResizeTap> row_taps(const Resize& resize, const Shape& images);
std::vector<ResizeTap> column_taps(const Resize& resize, const Shape& images);

}  // namespace annulus
