#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kernels/base/extent.h"
#include "kernels/operations/parameter.h"

// Operations that move elements without computing, and parameters as values.
namespace annulus {

// Concatenates any number of inputs along a dimension, in their order.
struct Concat {
  static constexpr auto kName = "concat";

  std::size_t axis = 1;  // the channels

  Shape output_shape(const Shapes& inputs) const;
};

// The same elements, in row-major order, in another shape. One extent, which depends on the batch, may be kInferred: it
// follows from the number of elements.
struct Reshape {
  static constexpr auto kName = "reshape";
  static constexpr std::size_t kInferred = 0;

  Shape shape;

  Shape output_shape(const Shapes& inputs) const;
};

// Output dimension i is input dimension order[i].
struct Transpose {
  static constexpr auto kName = "transpose";

  std::vector<std::size_t> order;

  Shape output_shape(const Shapes& inputs) const;
};

// Selects elements begin to before begin + size in a dimension.
struct Slice {
  static constexpr auto kName = "slice";

  std::size_t axis, begin, size;

  Shape output_shape(const Shapes& inputs) const;
};

// Element i in an output dimension is element indices[i] in the input's.
struct Gather {
  static constexpr auto kName = "gather";

  std::size_t axis;
  std::vector<std::size_t> indices;

  Shape output_shape(const Shapes& inputs) const;
};

// Adds elements with a constant value before and after each dimension's elements.
struct Pad {
  static constexpr auto kName = "pad";

  std::vector<std::size_t> before, after;  // for each dimension
  float value = 0;

  Shape output_shape(const Shapes& inputs) const;
};

// Repeats the first input along dimensions of size 1: the output has the shape `shape`, in which kBatch stands for the
// first extent of the second input, whose values are not read.
struct Expand {
  static constexpr auto kName = "expand";
  static constexpr std::size_t kBatch = 0;

  Shape shape;

  Shape output_shape(const Shapes& inputs) const;
};

// Scales images {batch, channels, height, width} to `size`. Output pixel i samples the input's coordinate
//   half_pixel:          (i + 1/2) / scale - 1/2
//   pytorch_half_pixel:  as half_pixel; 0 if the output has a single pixel
//   align_corners:       i (input - 1) / (output - 1)
//   asymmetric:          i / scale
// linearly between the two neighbours, or from the pixel to which it is rounded. (ONNX, Resize.)
struct Resize {
  enum class Coordinates { half_pixel, pytorch_half_pixel, align_corners, asymmetric };
  enum class Rounding { round_prefer_floor, round_prefer_ceil, floor, ceil };
  static constexpr auto kName = "resize";

  Extent size;
  bool linear = false;
  Coordinates coordinates = Coordinates::half_pixel;
  Rounding rounding = Rounding::round_prefer_floor;
  float row_scale = 0, column_scale = 0;  // 0: output / input, which may differ if the output was rounded to pixels

  Shape output_shape(const Shapes& inputs) const;
};

// A parameter as a value: class tokens, position embeddings, layer scales. It has no inputs.
struct Learned {
  static constexpr auto kName = "learned";

  Shape shape;
  Role role = Role::weight;
  std::string parameter = "value";  // parameter name; empty: the layer's
  float stddev = 0.02f;             // for the initial values

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Values that are not trained, such as masks or coordinate tables. There are no inputs.
struct Constant {
  static constexpr auto kName = "constant";

  Shape shape;
  std::vector<float> values;  // row-major

  Shape output_shape(const Shapes& inputs) const;
};

}  // namespace annulus
