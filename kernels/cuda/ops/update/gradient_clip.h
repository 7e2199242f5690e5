#pragma once

#include <vector>

#include "kernels/cuda/ops/loops/chunks.h"
#include "kernels/cuda/ops/loops/context.h"
#include "kernels/update.h"

namespace annulus::cuda {

// Update::clip(), measure_norm() and add_squares() over a GPU's arenas. The scaling factor stays in device memory.
class GradientClip {
 public:
  GradientClip(const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments, Context& context);

  void include(const std::function<double(double)>& all) { include_ = all; }  // see Update
  void clip(float limit) const;
  void measure_norm() const;
  GradientNorms take_norms() const;
  void add_squares(const Range& slice) const;
  double take_squares() const;

 private:
  void find_factor_to(float limit) const;
  void include_others() const;

  Context& context_;
  float* gradients_;
  const SumOverRanks sum_over_ranks_;      // empty if this rank has all gradients
  std::function<double(double)> include_;  // empty if there are no other ranks
  std::vector<Chunk> chunks_;              // the trained parameters here, in the arena's order
  Buffer device_chunks_, squares_, all_squares_, state_, sum_;
};

}  // namespace annulus::cuda
