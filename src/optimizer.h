#pragma once

#include <string>
#include <vector>

#include "kernels/update.h"
#include "models/parameters.h"

namespace annulus {

// Turns summed gradients into new parameters, each by its role, slice by slice of the arena as sums arrive.
class Optimizer {
 public:
  Optimizer(Device& device, Parameters& parameters, const UpdateRule& rule, float rate);

  // Before a step's first update.
  void begin_step() { ++step_; }

  // Updates what lies in this slice of the arenas, in floats; where the rule needs whole parameters, those of which all
  // slices have come. Slices of one step must not overlap.
  void update(const Range& slice);

  const std::string& name() const { return name_; }  // of its rule

  // Arenas like the parameters': momentum, or both moments.
  std::size_t states() const { return states_.size(); }
  DeviceView state(std::size_t number) const { return states_[number].view(); }
  DeviceView state(std::size_t number, const Parameter& p) const { return state(number).slice(p.offset, p.bytes); }

  std::uint64_t step() const { return step_; }  // of the last update; 0 before the first
  void set_step(std::uint64_t step) { step_ = step; }

 private:
  void update_whole(const Range& slice);

  const Parameters& parameters_;
  const std::string name_;
  const float rate_;
  const bool whole_parameters_;
  std::vector<Buffer> states_;
  std::unique_ptr<Update> rule_;
  std::uint64_t step_ = 0;
  std::vector<std::size_t> arrived_;  // floats of each parameter, in this step
};

}  // namespace annulus
