#pragma once

#include "kernels/cuda/ops/context.h"
#include "kernels/cuda/runtime/columns.h"

namespace annulus::cuda {

// What comes behind a layer's product, in place: output = max(0, output + bias), either of both only where it is
// wanted; and the way back. Over {rows, channels'} of the context's value type.
class BiasRelu {
 public:
  BiasRelu(bool bias, bool relu, std::size_t rows, std::size_t channels, Context& context);

  std::size_t workspace_bytes() const;  // for backward

  void forward(void* output, const float* bias) const;

  // Takes from the output's gradient what the ReLU did not let through, and writes the gradient of the bias.
  void backward(const void* output, void* output_gradient, float* bias_gradient, void* workspace) const;

 private:
  Context& context_;
  bool bias_, relu_;
  Columns columns_;
};

}  // namespace annulus::cuda
