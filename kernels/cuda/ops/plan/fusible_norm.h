#pragma once

#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {

struct Pool;  // max_pool.h

// A batch norm's interface for neighbours that may do the norm's passes: the convolutions before and after
// (convolution_problem.h), or a max pool after. To be called before bind(). All memory is on the device, a value per
// channel.
class FusibleNorm {
 public:
  struct ChannelSums {
    float *values, *squares;
  };
  struct ChannelFactors {
    void *scale, *shift;  // in the value type or, of stored outputs, in float32
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

  virtual bool needs_statistics() const = 0;  // the input's
  // From now on, the operation before the norm sums the norm input's values and squares.
  virtual ChannelSums take_statistics() = 0;

  virtual Kind kind() const = 0;

  // From now on, forward() computes the factors instead of the output. REQUIRES: Kind::rectified, or Kind::block_end
  // and take_gradient_sums() has been called.
  virtual ChannelFactors leave_output() = 0;
  // As leave_output(), if the operation that computes the output also stores it.
  virtual void leave_stored_output() = 0;
  virtual ChannelFactors stored_output_factors() const = 0;
  // From now on, the operation after the norm writes the gradient before the ReLU, instead of the output's gradient,
  // and that gradient's sums. forward() computes what that takes; at a block's end scale and shift are zeros. REQUIRES:
  // Kind::rectified or Kind::block_end.
  virtual NormGradient take_gradient_sums() = 0;

  // From now on, forward() computes these factors instead of the output, and backward() gets the pool output's gradient
  // and gathers the norm's from it. `from`: Numbers for each pool output vector, written by the pool's forward(); null
  // in inference. REQUIRES: Kind::plain.
  virtual OutputFactors leave_output_to_pool(const Pool& pool, const void* from) = 0;
};

}  // namespace annulus::cuda
