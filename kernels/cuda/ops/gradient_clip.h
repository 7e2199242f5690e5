#pragma once

#include <vector>

#include "kernels/cuda/ops/context.h"
#include "kernels/update.h"

namespace annulus::cuda {

// Update::clip() and measure_norm() over a GPU's arenas. The scaling factor stays in device memory.
class GradientClip {
 public:
  GradientClip(const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments, Context& context);

  void clip(float limit) const;
  void measure_norm() const;
  GradientNorms take_norms() const;

 private:
  void find_factor_to(float limit) const;

  Context& context_;
  float* gradients_;
  std::size_t chunks_;
  Buffer device_chunks_, squares_, state_;
};

}  // namespace annulus::cuda
