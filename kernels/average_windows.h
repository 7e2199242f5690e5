#pragma once

#include <vector>

#include "kernels/base/split.h"
#include "kernels/operation.h"

namespace annulus {

// The windows of an average pool of any kind, along one axis of an image.
struct AverageAxis {
  std::vector<Range> windows;  // of each output: the pixels that it averages, without those in the border
  std::vector<float> factors;  // of each output: 1 / number of pixels, including the border's
  std::vector<Range> readers;  // of each pixel: the outputs whose windows contain it
};

// An output pixel is the sum over rows.windows x columns.windows, times both factors.
struct AverageWindows {
  AverageAxis rows, columns;
};

AverageWindows average_windows(const AveragePool& pool, const Shape& input);
AverageWindows average_windows(const AdaptiveAveragePool& pool, const Shape& input);

}  // namespace annulus
