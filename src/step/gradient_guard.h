#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "models/network/model.h"

namespace annulus {

// Judges a step's gradients before any weight is updated. This one accepts all.
class GradientGuard {
 public:
  virtual ~GradientGuard() = default;

  // To be called before each part's backward pass, and when [0, gradients) of the part are final, in floats, before
  // they are sent or added to.
  virtual void begin_part() {}
  virtual void ready(std::size_t /*gradients*/) {}
  // To be called after the passes. Returns whether the ranks may update. Collective.
  virtual bool accepts() { return true; }
};

// Returns whether the ranks may update. `not_finite`: the first parameter with a gradient of this rank that is not
// finite; null if there is none. The same on all ranks. Collective.
using JudgeGradients = std::function<bool(const Parameter* not_finite)>;

// A guard that finds gradients of this rank that are not finite, although the loss may be. (In the all-reduced
// gradients the rank is no longer visible.) The model must outlive it.
std::unique_ptr<GradientGuard> make_finite_guard(Model& model, JudgeGradients judge);

}  // namespace annulus
