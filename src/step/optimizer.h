#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/update.h"
#include "models/parameters.h"

namespace annulus {

// Updates parameters that are not frozen from all-reduced gradients, each according to its role, slice by slice of the
// arena as all-reduces complete.
class Optimizer {
 public:
  using FactorsOf = std::function<UpdateFactors(const std::string& parameter)>;

  // `average_decay`: decay of the moving average of the weights; 0: no average.
  Optimizer(
      Device& device, Parameters& parameters, const UpdateRule& rule, float rate, double average_decay = 0,
      const FactorsOf& factors_of = [](const std::string&) { return UpdateFactors{}; });

  // Sets the learning rate of steps that begin from now on. (Deferred updates of the previous step keep theirs.)
  void set_rate(float rate) { next_rate_ = rate; }

  // To be called before a step's first update.
  void begin_step() {
    ++step_;
    rate_ = next_rate_;
  }

  // Keeps zeroed state for these slices of the arenas only, in floats, ascending and disjoint; update() is called for
  // them. REQUIRES: the rule does not need whole parameters, and there is no average.
  void keep(const std::vector<Range>& slices);
  bool sharded() const { return !sharded_rules_.empty(); }  // keep() was called

  // To be called after begin_step(), when all of a step's gradients are complete: see Update.
  void clip(float limit) { rule_->clip(limit); }
  void measure_norm() { rule_->measure_norm(); }
  GradientNorms take_norms() { return rule_->take_norms(); }
  void add_squares(const Range& slice) { rule_->add_squares(slice); }  // at any time
  double take_squares() { return rule_->take_squares(); }
  double kept_squares();  // of the gradients in the slices of keep(). REQUIRES: take_squares() was called

  // Updates this slice of the arenas, in floats. If the rule needs whole parameters, updates those whose slices are
  // complete. REQUIRES: slices of one step do not overlap.
  void update(const Range& slice);

  const std::string& name() const { return name_; }  // name of its rule

  // Optimizer state, arenas with the layout of the gradients': momentum, or both moments. If sharded(), they have only
  // the slices of keep(), one after the other.
  std::size_t states() const { return states_.size(); }
  DeviceView state(std::size_t number) const { return states_[number].view(); }
  // REQUIRES: not sharded().
  DeviceView state(std::size_t number, const Parameter& p) const { return state(number).slice(p.offset, p.bytes); }
  // Copy the slices of a state that this rank keeps to and from `arena`, which is in host memory and has the layout of
  // the gradients.
  void read_state(std::size_t number, std::span<std::byte> arena) const;
  void write_state(std::size_t number, std::span<const std::byte> arena);

  // The moving average of the weights in an arena with their layout; empty if disabled. See average_share().
  DeviceView average() const { return average_.view(); }
  DeviceView average(const Parameter& p) const { return average().slice(p.offset, p.bytes); }
  void begin_average() { rule_->begin_average(); }  // initializes it with the current weights
  void swap_average();                              // swaps the weights and their average, if there is one

  std::uint64_t step() const { return step_; }  // number of the last update; 0 before the first
  // Continues after this step, whatever updates of the next were made.
  void set_step(std::uint64_t step) {
    step_ = step;
    std::ranges::fill(arrived_, std::size_t{0});
  }

 private:
  // Calls visit(slice, its place in the states) for the slices whose state is kept; both in floats.
  template <class Visit>
  void for_each_kept(Visit visit) const;
  void update_whole(const Range& slice);
  void run(const Range& slice);

  Device& device_;
  Parameters& parameters_;
  const UpdateRule kind_;
  const std::string name_;
  float rate_, next_rate_;
  const bool whole_parameters_;
  const std::vector<UpdateSegment> segments_;  // the parameters
  std::vector<Buffer> states_;
  Buffer average_;
  std::unique_ptr<Update> rule_;                        // of the whole arenas; if sharded, without state
  std::vector<Range> kept_;                             // the slices whose state is kept
  std::vector<std::unique_ptr<Update>> sharded_rules_;  // of each; none if not sharded
  std::uint64_t step_ = 0;
  std::vector<std::size_t> arrived_;  // complete floats of each of segments_ in this step
};

}  // namespace annulus
