#pragma once

#include <vector>

#include "kernels/base/tensor.h"

namespace annulus {

// Raw pixels {batch, height, width, channels} (uint8) -> {batch, channels, height, width} (float32), (pixel / 255 -
// mean) / std for each channel. A network's first operation.
struct ImageInput {
  static constexpr auto kName = "image input";

  std::vector<float> mean;
  std::vector<float> stddev;

  Shape output_shape(const Shapes& inputs) const;
};

}  // namespace annulus
