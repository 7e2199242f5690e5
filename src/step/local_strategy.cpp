#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "src/step/strategy.h"

namespace annulus {
namespace {

// The outer optimizer. Weights move by the mean difference of a round as if it were their gradient.
struct Outer {
  Sgd rule;
  float rate;
};

Outer parse_outer(const std::string& name) {
  if (name == "average") return {{}, 1};
  if (name == "nesterov") return {{.momentum = 0.5f, .nesterov = true}, 0.5f};
  fail("unknown outer optimizer '{}'", name);
}

// The trained parameters, or the running statistics.
std::vector<UpdateSegment> segments_of(const Parameters& parameters, bool statistics) {
  std::vector<UpdateSegment> segments;
  for (const Parameter& p : parameters.updated())
    if (statistics ? p.role == Role::statistic : p.trained())
      segments.push_back({.range = {p.offset / sizeof(float), (p.offset + p.bytes) / sizeof(float)}, .role = p.role});
  return segments;
}

// Segments without gaps become one range.
std::vector<Range> joined(const std::vector<UpdateSegment>& segments) {
  std::vector<Range> ranges;
  for (const UpdateSegment& segment : segments)
    if (!ranges.empty() && ranges.back().end == segment.range.begin)
      ranges.back().end = segment.range.end;
    else
      ranges.push_back(segment.range);
  return ranges;
}

// Running statistics are a rank's own until finish(), because training does not use them.
class Local final : public Strategy {
 public:
  Local(Model& model, AllReduce& all_reduce, Optimizer& optimizer, const RoundOptions& options, const Outer& outer)
      : device_(model.device()),
        parameters_(model.parameters()),
        all_reduce_(all_reduce),
        optimizer_(optimizer),
        rate_(outer.rate),
        trained_(joined(segments_of(parameters_, false))),
        statistics_(joined(segments_of(parameters_, true))),
        differences_(all_reduce.allocate(parameters_.gradients().bytes)),
        common_(device_.allocate(parameters_.gradients().bytes)),
        begun_(device_.allocate(parameters_.gradients().bytes)),
        velocity_(device_.allocate(parameters_.gradients().bytes)),
        update_(device_.plan(outer.rule, {common_.view(), differences_, {}, {velocity_.view()}},
                             segments_of(parameters_, false))),
        keeps_velocity_(outer.rule.momentum > 0),
        ranks_(options.ranks) {}

  bool scatters() const override { return false; }
  bool has_rounds() const override { return true; }
  DeviceView differences() const override { return differences_; }
  void plan(const GradientBuckets& buckets, const SumOverRanks& /*sum*/) override { buckets_ = &buckets; }

  void continue_with(const RoundOptions& round) override {
    ranks_ = round.ranks;
    apart_ = false;
  }

  void begin_round(const StepPlan& /*round*/) override {
    if (std::exchange(apart_, true)) return;
    for (const Buffer* to : {&common_, &begun_}) copy_trained(parameters_.weights(), to->view(), whole());
  }

  void end_part(std::size_t /*number*/, float clip_norm) override {
    optimizer_.begin_step();
    LossScaling* const scaling = device_.loss_scaling();
    if (scaling != nullptr) scaling->judge(parameters_.gradients());
    if (clip_norm > 0) optimizer_.clip(clip_norm);
    optimizer_.update(whole());
    if (scaling != nullptr) scaling->conclude();
  }

  void end_round(float weight) override {
    weight_ = weight;
    for (const Range& range : trained_) {
      const DeviceView now = slice_of(parameters_.weights(), range), difference = slice_of(begun_.view(), range);
      device_.add_scaled(now, -1, difference);
      device_.scale(difference, weight, slice_of(differences_, range));
    }
  }

  void update(std::size_t bucket) override {
    const Range range = buckets_->range(bucket);
    update_->run(range, rate_, 1);
    for (const DeviceView to : {parameters_.weights(), begun_.view()}) copy_trained(common_.view(), to, range);
    parameters_.weights_changed(range);
  }

  void finish() override {
    if (!std::exchange(apart_, false)) return;
    copy_trained(common_.view(), parameters_.weights(), whole());
    average_statistics();
    parameters_.weights_changed();
  }

  DeviceView gather(DeviceView state) override {
    const DeviceView mean = parameters_.gradients();
    device_.scale(state, 1 / static_cast<float>(ranks_), mean);
    all_reduce_arena(mean);
    return mean;
  }
  void adopt(DeviceView gathered, DeviceView state) override { device_.copy(gathered, state); }

  DeviceView outer_velocity() override { return keeps_velocity_ ? velocity_.view() : DeviceView{}; }

 private:
  Range whole() const { return {0, differences_.bytes / sizeof(float)}; }

  void copy_trained(DeviceView from, DeviceView to, const Range& within) const {
    for (const Range& range : trained_) {
      const Range part{std::max(range.begin, within.begin), std::min(range.end, within.end)};
      if (part.begin < part.end) device_.copy(slice_of(from, part), slice_of(to, part));
    }
  }

  void all_reduce_arena(DeviceView arena) {
    AllReduce::Ticket last = 0;
    for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
      const Range range = buckets_->range(bucket);
      last = all_reduce_.enqueue(slice_of(arena, range), {.bucket = bucket});
    }
    all_reduce_.join(last);
  }

  // In one array, because there are many short ones: in the memory of the gradients, which are not needed now.
  void average_statistics() {
    const auto each = [&](auto visit) {
      std::size_t begin = 0;
      for (const Range& range : statistics_) {
        visit(slice_of(parameters_.weights(), range), slice_of(parameters_.gradients(), {begin, begin + range.size()}));
        begin += range.size();
      }
      return begin;
    };
    const std::size_t count = each([&](DeviceView own, DeviceView mean) { device_.scale(own, weight_, mean); });
    if (count == 0) return;
    all_reduce_.join(
        all_reduce_.enqueue(slice_of(parameters_.gradients(), {0, count}), {.next = AllReduce::Next::wait}));
    each([&](DeviceView own, DeviceView mean) { device_.copy(mean, own); });
  }

  Device& device_;
  Parameters& parameters_;
  AllReduce& all_reduce_;
  Optimizer& optimizer_;
  const float rate_;
  const std::vector<Range> trained_, statistics_;  // in floats
  const DeviceView differences_;
  Buffer common_;    // the weights without this round's differences
  Buffer begun_;     // this rank's weights when it began the round
  Buffer velocity_;  // of the outer optimizer
  const std::unique_ptr<Update> update_;
  const bool keeps_velocity_;
  std::size_t ranks_;
  const GradientBuckets* buckets_ = nullptr;
  bool apart_ = false;  // this rank's weights are not the common ones
  float weight_ = 0;    // of this rank in the last round
};

}  // namespace

const std::vector<std::string>& outer_names() {
  static const std::vector<std::string> names{"average", "nesterov"};
  return names;
}

std::unique_ptr<Strategy> make_local_strategy(Model& model, AllReduce& all_reduce, Optimizer& optimizer,
                                              const RoundOptions& options) {
  return std::make_unique<Local>(model, all_reduce, optimizer, options, parse_outer(options.outer));
}

}  // namespace annulus
