#pragma once

#include <vector>

#include "kernels/cuda/context.h"
#include "kernels/update.h"

namespace annulus::cuda {

// Update::clip() over a GPU's arenas. The factor stays in the device's memory.
class GradientClip {
 public:
  GradientClip(const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments, Context& context);

  void clip(float limit) const;
  GradientNorms take_norms() const;

 private:
  Context& context_;
  float* gradients_;
  std::size_t chunks_;
  Buffer device_chunks_, squares_, state_;
};

}  // namespace annulus::cuda
