#pragma once

#include <string>
#include <vector>

#include "kernels/update.h"
#include "models/parameters.h"

namespace annulus {

// Turns summed gradients into new parameters, each by its role, slice by slice of the arena as sums arrive.
class Optimizer {
 public:
  // `average_decay`: of the moving average of the weights; 0: there is none.
  Optimizer(Device& device, Parameters& parameters, const UpdateRule& rule, float rate, double average_decay = 0);

  // The rate of steps that begin from now on. (What is left to do of the one before keeps its own.)
  void set_rate(float rate) { next_rate_ = rate; }

  // Before a step's first update.
  void begin_step() {
    ++step_;
    rate_ = next_rate_;
  }

  // After begin_step(), with all of a step's gradients: see Update.
  void clip(float limit) { rule_->clip(limit); }
  void measure_norm() { rule_->measure_norm(); }
  GradientNorms take_norms() { return rule_->take_norms(); }

  // Updates what lies in this slice of the arenas, in floats; where the rule needs whole parameters, those of which all
  // slices have come. Slices of one step must not overlap.
  void update(const Range& slice);

  const std::string& name() const { return name_; }  // of its rule

  // Arenas like the parameters': momentum, or both moments.
  std::size_t states() const { return states_.size(); }
  DeviceView state(std::size_t number) const { return states_[number].view(); }
  DeviceView state(std::size_t number, const Parameter& p) const { return state(number).slice(p.offset, p.bytes); }

  // Where it is wanted, an arena like the weights' that follows them, statistics and all: in step t, the first of which
  // is 1, average = d average + (1 - d) weights with d = min(decay, (1 + t) / (10 + t)). (Polyak and Juditsky,
  // "Acceleration of stochastic approximation by averaging", 1992; the decay that grows is that of TensorFlow's
  // ExponentialMovingAverage.) Empty where it is not.
  DeviceView average() const { return average_.view(); }
  DeviceView average(const Parameter& p) const { return average().slice(p.offset, p.bytes); }
  void begin_average();     // with the weights as they are
  void exchange_average();  // the weights become their average, and it becomes them; nothing where there is none

  std::uint64_t step() const { return step_; }  // of the last update; 0 before the first
  void set_step(std::uint64_t step) { step_ = step; }

 private:
  void update_whole(const Range& slice);
  void run(const Range& slice);

  Device& device_;
  Parameters& parameters_;
  const std::string name_;
  float rate_, next_rate_;
  const bool whole_parameters_;
  const double average_decay_;
  std::vector<Buffer> states_;
  Buffer average_;
  std::unique_ptr<Update> rule_;
  std::uint64_t step_ = 0;
  std::vector<std::size_t> arrived_;  // floats of each parameter, in this step
};

}  // namespace annulus
