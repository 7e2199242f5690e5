#pragma once

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

// A batch norm, as seen by the convolutions before and after it that may do its passes (ConvolutionFusion). To be
// called before bind(). All memory is on the device, one value for each channel.
class FusibleNorm {
 public:
  struct ChannelSums {
    float *values, *squares;
  };
  struct ChannelFactors {
    void *scale, *shift;  // in the value type
  };

  virtual ~FusibleNorm() = default;

  virtual bool needs_statistics() const = 0;  // of its input
  // From now on, the operation before it writes the sums of its input's values and of their squares.
  virtual ChannelSums take_statistics() = 0;

  virtual bool scales_and_rectifies() const = 0;  // its output is max(0, scale input + shift)
  // From now on, forward() computes the factors instead of the output.
  virtual ChannelFactors leave_output() = 0;
  // From now on, the operation after it writes the gradient of what the ReLU reads, instead of the output's gradient,
  // and its sums. forward() computes what that takes. REQUIRES: scales_and_rectifies().
  virtual NormGradient take_gradient_sums() = 0;
};

}  // namespace annulus::cuda
