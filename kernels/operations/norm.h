#pragma once

#include <cstddef>
#include <vector>

#include "kernels/operations/parameter.h"

namespace annulus {

// Ioffe and Szegedy, "Batch normalization", ICML 2015. Trains with the statistics of the rank's batch or, if
// synchronized, of the global batch. With add, a second input with the output's shape is added to the normalized
// values; with relu, the output is max(0, .) of the result. With frozen_statistics, training normalizes with the
// running statistics, as inference does, and does not change them; it is never synchronized.
struct BatchNorm {
  static constexpr auto kName = "batch norm";

  float epsilon = 1e-5f;
  bool add = false;
  bool relu = false;
  bool synchronized = false;
  bool frozen_statistics = false;
  float initial_scale = 1;
  float momentum = kStatisticMomentum;

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Ba, Kiros, Hinton, "Layer normalization", 2016, over the dimensions from `axis` to the last, with a scale and a shift
// in their shape. If not centred, the mean is not subtracted: x / sqrt(mean square + epsilon) (Zhang and Sennrich,
// "Root mean square layer normalization", NeurIPS 2019).
struct LayerNorm {
  static constexpr auto kName = "layer norm";

  std::size_t axis;
  float epsilon = 1e-5f;
  bool shift = true;
  bool centred = true;

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Wu and He, "Group normalization", ECCV 2018: {batch, channels, ...} is normalized over each group of neighbouring
// channels in a sample. With as many groups as channels: instance normalization (Ulyanov et al., 2016).
struct GroupNorm {
  static constexpr auto kName = "group norm";

  std::size_t groups;
  float epsilon = 1e-5f;

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// x / (bias + alpha / size * (sum of squares over the `size` nearest channels))^beta over {batch, channels, height,
// width} (Krizhevsky et al., NIPS 2012, section 3.3, as ONNX and PyTorch scale it).
struct LocalResponseNorm {
  static constexpr auto kName = "local response norm";

  std::size_t size;
  float alpha = 1e-4f;
  float beta = 0.75f;
  float bias = 1;

  Shape output_shape(const Shapes& inputs) const;
};

}  // namespace annulus
