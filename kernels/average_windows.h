#pragma once

#include <vector>

#include "kernels/base/split.h"
#include "kernels/operation.h"

namespace annulus {

// An average pool's windows, along one image axis.
struct AverageAxis {
  std::vector<Range> windows;  // for each output: the averaged pixels, without the border's
  std::vector<float> factors;  // for each output: 1 / number of pixels, including the border's
  std::vector<Range> readers;  // for each pixel: the outputs whose windows contain it
};

// An output pixel is the sum over rows.windows x columns.windows, times both factors.
struct AverageWindows {
  AverageAxis rows, columns;
};

AverageWindows average_windows(const AveragePool& pool, const Shape& input);
AverageWindows average_windows(const AdaptiveAveragePool& pool, const Shape& input);

}  // namespace annulus
