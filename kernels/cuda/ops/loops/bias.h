#pragma once

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/cuda/runtime/columns.h"

namespace annulus::cuda {

// Ends a layer with a product, in place: output = max(0, output + bias), with bias and ReLU each optional; and runs
// this end backward. Over {rows, channels'} in the context's value type.
class BiasRelu {
 public:
  BiasRelu(bool bias, bool relu, std::size_t rows, std::size_t channels, Context& context);

  std::size_t workspace_bytes() const;  // for backward

  void forward(void* output, const float* bias) const;

  // Zeroes the output's gradient where the ReLU was inactive, and writes the bias's gradient, if it is not null.
  void backward(const void* output, void* output_gradient, float* bias_gradient, void* workspace) const;

 private:
  Context& context_;
  bool bias_, relu_;
  Columns columns_;
  Buffer counters_;  // only if there is a bias
};

}  // namespace annulus::cuda
