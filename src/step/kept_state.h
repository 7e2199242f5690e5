#pragma once

#include "models/parameters/parameters.h"

namespace annulus {

// What ranks keep apart between steps, brought together for evaluations and checkpoints. By default all of them keep
// the same.
class KeptState {
 public:
  virtual ~KeptState() = default;

  // Returns one of the optimizer's states, or its average, as a whole arena with the gradients' layout, until the next
  // step begins; if ranks have different states, their mean. May overwrite the gradients. Collective; to be called
  // between steps.
  virtual DeviceView gather(DeviceView state) { return state; }
  // Continues with what gather() returned for a state, if ranks have different states.
  virtual void adopt(DeviceView /*gathered*/, DeviceView /*state*/) {}

  // Swaps the weights that are not frozen with `other`, a whole arena with the gradients' layout, the same on all
  // ranks. Collective; to be called between steps.
  virtual void swap_weights(Parameters& parameters, DeviceView other) { parameters.swap_weights(other); }

  // Returns the state of an outer optimizer, an arena with the gradients' layout; empty if there is none.
  virtual DeviceView outer_velocity() { return {}; }
};

}  // namespace annulus
