#include "kernels/cuda/ops/loops/strided_loops.h"

namespace annulus::cuda {

Strides strides_of(const TensorSpec& tensor) {
  const auto strides = channels_last(tensor).strides();
  return {strides.begin(), strides.end()};
}

Strides row_major_strides(const Shape& shape) {
  Strides strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * static_cast<std::int64_t>(shape[i]);
  return strides;
}

Strides repeated(const TensorSpec& operand, const Shape& output) {
  const std::size_t missing = output.size() - operand.shape.size();
  Strides strides(missing, 0);
  const Strides own = strides_of(operand);
  for (std::size_t i = 0; i < operand.shape.size(); ++i)
    strides.push_back(operand.shape[i] == 1 && output[missing + i] != 1 ? 0 : own[i]);
  return strides;
}

}  // namespace annulus::cuda
