#pragma once

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
};

}  // namespace annulus::cuda
