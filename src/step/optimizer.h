#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/update.h"
#include "models/parameters/parameters.h"

namespace annulus {

// Updates parameters that are not frozen from all-reduced gradients, each according to its role, slice by slice of the
// arena as all-reduces complete.
class Optimizer {
 public:
  using FactorsOf = std::function<UpdateFactors(const std::string& parameter)>;

  // What this rank keeps of the states and of the average. Slices are given by keep(), before anything else is called;
  // until then nothing is allocated, since there may be no memory for all.
  enum class Keeps { all, slices };

  Optimizer(
      Device& device, Parameters& parameters, const UpdateRule& rule, float rate, const Averaging& averaging = {},
      Keeps keeps = Keeps::all, const FactorsOf& factors_of = [](const std::string&) { return UpdateFactors{}; });

  // Sets the learning rate of steps that begin from now on. (Deferred updates of the previous step keep theirs.)
  void set_rate(float rate) { next_rate_ = rate; }

  // To be called before a step's first update.
  void begin_step() {
    ++step_;
    rate_ = next_rate_;
  }

  // Keeps zeroed states and a zeroed average of these slices of the arenas only, in floats, ascending and disjoint;
  // update() is called for them. The other ranks keep the others, and `sum` adds up their parts of norms. Discards what
  // was kept before. `exchange`: needed by Muon; must outlive the optimizer's use.
  void keep(const std::vector<Range>& slices, const SumOverRanks& sum, MatrixExchange* exchange = nullptr) {
    UpdateArenas all = arenas();
    all.exchange = exchange;
    keep(slices, sum, device_, std::move(all));
  }
  // The same for other arenas with the layout of the gradients', in the memory of a device that makes the updates.
  void keep(const std::vector<Range>& slices, const SumOverRanks& sum, Device& device, UpdateArenas arenas);
  bool sharded() const { return !kept_.empty(); }  // keep() was called

  // Keeps all states, zeroed, and discards earlier states. The ranks share the work on matrices: measure_parameters()
  // is to be called before a step's first update(). REQUIRES: the rule is Muon.
  void share_matrices(MatrixExchange& exchange);

  // To be called after begin_step(), when all of a step's gradients are complete: see Update.
  void clip(float limit) { rule_->clip(limit); }
  void measure_norm() { rule_->measure_norm(); }
  void include(const std::function<double(double squares)>& all) { rule_->include(all); }  // see Update
  GradientNorms take_norms() { return rule_->take_norms(); }
  void add_squares(const Range& slice) { rule_->add_squares(slice); }  // at any time
  double take_squares() { return rule_->take_squares(); }
  bool diverged() const;     // see Divergence; since the last keep()
  void forget_divergence();  // to be called when the weights were replaced
  // To be called after clip(): takes the norms of all parameters. REQUIRES: sharded(), or share_matrices().
  void measure_parameters() { rule_->measure_parameters(all_); }

  // Updates this slice of the arenas, in floats. If the rule needs whole parameters, updates parameters whose slices
  // are complete. REQUIRES: slices of one step do not overlap.
  void update(const Range& slice);

  const std::string& name() const { return name_; }  // the rule's name
  bool needs_whole_parameters() const { return whole_parameters_; }
  float momentum() const { return annulus::momentum(kind_); }

  // Optimizer state, arenas with the layout of the gradients': momentum, or both moments. If sharded(), they have only
  // the slices of keep(), one after the other.
  std::size_t states() const { return states_.size(); }
  DeviceView state(std::size_t number) const { return states_[number].view(); }
  // REQUIRES: not sharded().
  DeviceView state(std::size_t number, const Parameter& p) const { return state(number).slice(p.offset, p.bytes); }

  // The moving average of the weights, an arena like a state; empty if disabled.
  DeviceView average() const { return average_.view(); }
  void begin_average();  // initializes it with the current weights, if there is one

  // Copies the slices that this rank keeps of a state, or of the average, to `whole`, an arena with the layout of the
  // gradients'.
  void read(DeviceView kept, DeviceView whole) const;
  // Writes what this rank keeps of a piece of such an arena, which begins `begin` bytes into it.
  void write(DeviceView kept, std::size_t begin, std::span<const std::byte> piece);

  std::uint64_t step() const { return step_; }  // number of the last update; 0 before the first
  // Continues after this step, whatever updates of the next were made.
  void set_step(std::uint64_t step) {
    step_ = step;
    std::ranges::fill(arrived_, std::size_t{0});
  }

 private:
  // Calls visit(place, place in the states, size) for each slice that is kept, in bytes.
  template <class Visit>
  void for_each_kept(Visit visit) const;
  UpdateArenas arenas() const { return {parameters_.weights(), parameters_.gradients(), parameters_.copies(), {}}; }
  void plan(UpdateArenas arenas, std::size_t bytes);
  void update_whole(const Range& slice);
  void update_complete(const Range& parameters);

  Device& device_;      // of the parameters
  Device* updates_on_;  // and keeps the states and the average
  Parameters& parameters_;
  const Range all_;  // of the gradients' arena, in floats
  const UpdateRule kind_;
  const std::string name_;
  float rate_, next_rate_;
  const bool whole_parameters_;
  const std::vector<UpdateSegment> segments_;  // the parameters
  const Averaging averaging_;
  std::vector<Range> kept_;  // the slices of keep(); none if not sharded
  bool shares_matrices_ = false;
  std::vector<Buffer> states_;
  Buffer average_;
  std::unique_ptr<Update> rule_;
  std::uint64_t step_ = 0;
  std::vector<std::size_t> arrived_;  // complete floats of each of segments_ in this step
};

}  // namespace annulus
