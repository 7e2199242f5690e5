#pragma once

#include "kernels/split.h"
#include "models/parameters.h"

namespace annulus {

// Turns summed gradients into new parameters, each by its role, slice by slice of the arena as sums arrive.
class Optimizer {
 public:
  Optimizer(Device& device, Parameters& parameters, const SgdStep& rule);

  // Updates what lies in this slice of the arenas, in floats. Slices of one step must not overlap.
  void update(const Range& slice);

  DeviceView velocity() const { return velocity_.view(); }
  DeviceView velocity(const Parameter& p) const { return velocity().slice(p.offset, p.bytes); }

 private:
  Device& device_;
  Parameters& parameters_;
  SgdStep weight_rule_, offset_rule_;
  Buffer velocity_;  // an arena like the parameters'
};

}  // namespace annulus
