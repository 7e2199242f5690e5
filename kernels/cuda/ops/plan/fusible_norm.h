#pragma once

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

struct Pool;  // max_pool.h

// A batch norm, as seen by its neighbours that may do its passes: the convolutions before and after it
// (convolution_problem.h), or a max pool after it. To be called before bind(). All memory is on the device, one value
// for each channel.
class FusibleNorm {
 public:
  struct ChannelSums {
    float *values, *squares;
  };
  struct ChannelFactors {
    void *scale, *shift;  // in the value type
  };
  struct OutputFactors {
    const float *factor, *offset;
  };

  enum class Kind {
    plain,      // the output is scale input + shift
    rectified,  // max(0, scale input + shift), in training
    block_end,  // max(0, scale input + shift + addend), in training
    other,
  };

  virtual ~FusibleNorm() = default;

  virtual bool needs_statistics() const = 0;  // of its input
  // From now on, the operation before it writes the sums of its input's values and of their squares.
  virtual ChannelSums take_statistics() = 0;

  virtual Kind kind() const = 0;

  // From now on, forward() computes the factors instead of the output. REQUIRES: Kind::rectified, or Kind::block_end
  // and take_gradient_sums() has been called.
  virtual ChannelFactors leave_output() = 0;
  // From now on, the operation after it writes the gradient of what the ReLU reads, instead of the output's gradient,
  // and its sums. forward() computes what that takes; at the end of a block scale and shift are zeros.
  // REQUIRES: Kind::rectified or Kind::block_end.
  virtual NormGradient take_gradient_sums() = 0;

  // From now on, forward() computes these factors instead of the output, and backward() gathers the output's gradient
  // from that of the max pool after it, which is the one that it is given. `from`: Numbers for each of the pool's
  // output vectors, which the pool's forward() writes; null in inference. REQUIRES: Kind::plain.
  virtual OutputFactors leave_output_to_pool(const Pool& pool, const void* from) = 0;
};

}  // namespace annulus::cuda
