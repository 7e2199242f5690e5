#pragma once

#include <vector>

#include "kernels/base/extent.h"
#include "kernels/base/tensor.h"

namespace annulus {

// With relu, the maximum over a window and 0; a ReLU before the pool and a ReLU after it are equivalent. REQUIRES: no
// window is only padding or has more than kMostPixels pixels; output_shape() throws Error otherwise.
struct MaxPool {
  static constexpr auto kName = "max pool";
  static constexpr std::size_t kMostPixels = 255;  // per window

  Extent kernel;
  Extent stride;
  Border padding = 0;
  bool relu = false;

  Shape output_shape(const Shapes& inputs) const;
};

// The mean over each window. Padding counts as zeros, or with count_padding = false not at all. The overhang is part of
// the padding at the bottom and at the right, and never counts: it belongs to the last windows of pools whose output
// size is rounded up.
struct AveragePool {
  static constexpr auto kName = "average pool";

  Extent kernel;
  Extent stride;
  Border padding = 0;
  bool count_padding = true;
  Extent overhang = 0;

  Shape output_shape(const Shapes& inputs) const;
};

// Averages images to an output of `size`, whatever the input's size. Row y among h output rows is the mean over the
// input's rows from floor(y H / h) to before ceil((y + 1) H / h). So windows overlap if h does not divide H, and repeat
// if h is larger than H. The same applies to columns. {1} is the mean over each channel's pixels.
struct AdaptiveAveragePool {
  static constexpr auto kName = "adaptive average pool";

  Extent size;

  Shape output_shape(const Shapes& inputs) const;
};

// The mean over some dimensions, which are removed, or kept with size 1.
struct Mean {
  static constexpr auto kName = "mean";

  std::vector<std::size_t> axes;  // ascending
  bool keep = false;

  Shape output_shape(const Shapes& inputs) const;
};

}  // namespace annulus
