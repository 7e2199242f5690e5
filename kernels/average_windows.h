#pragma once

#include <vector>

#include "kernels/base/split.h"
#include "kernels/operation.h"

namespace annulus {

// What average pools of every kind come to, along one axis of an image.
struct AverageAxis {
  std::vector<Range> windows;  // of each output: the pixels that it is the mean of, those in the border left out
  std::vector<float> factors;  // of each output: one over the number of pixels, the border's counted
  std::vector<Range> readers;  // of each pixel: the outputs in whose windows it lies
};

// An output pixel is the sum over rows.windows x columns.windows, times both factors.
struct AverageWindows {
  AverageAxis rows, columns;
};

AverageWindows average_windows(const AveragePool& pool, const Shape& input);
AverageWindows average_windows(const AdaptiveAveragePool& pool, const Shape& input);

}  // namespace annulus
