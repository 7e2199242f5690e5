#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/cpu/flat.h"
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

// Running statistics are a rank's own until finish(), because training does not use them.
class Local final : public Strategy {
 public:
  Local(Model& model, AllReduce& all_reduce, Optimizer& optimizer, const RoundOptions& options, const Outer& outer)
      : device_(model.device()),
        parameters_(model.parameters()),
        all_reduce_(all_reduce),
        optimizer_(optimizer),
        overlaps_(options.overlap),
        rate_(outer.rate),
        trained_(segments_of(parameters_, false)),
        statistics_(segments_of(parameters_, true)),
        differences_(all_reduce.allocate(parameters_.gradients().bytes)),
        common_(device_.allocate(parameters_.gradients().bytes)),
        begun_(device_.allocate(parameters_.gradients().bytes)),
        velocity_(device_.allocate(parameters_.gradients().bytes)),
        error_(all_reduce.info().wire == WireType::int8 ? device_.allocate(parameters_.gradients().bytes) : Buffer{}),
        update_(device_.plan(outer.rule, {common_.view(), differences_, {}, {velocity_.view()}}, trained_)),
        keeps_velocity_(outer.rule.momentum > 0),
        ranks_(options.ranks) {}

  bool scatters() const override { return false; }
  bool has_rounds() const override { return true; }
  bool overlaps() const override { return overlaps_; }
  DeviceView differences() const override { return differences_; }
  DeviceView rounding_error() override { return error_.view(); }
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
    if (clip_norm > 0) optimizer_.clip(clip_norm);
    optimizer_.update({0, parameters_.gradients().bytes / sizeof(float)});
  }

  void end_round(float weight) override {
    weight_ = weight;
    for (const UpdateSegment& segment : trained_) {
      const float* common = floats(common_.view(), segment.range);
      float *begun = floats(begun_.view(), segment.range), *now = floats(parameters_.weights(), segment.range);
      float* to = floats(differences_, segment.range);
      for (std::size_t i = 0; i < segment.range.size(); ++i) {
        const float difference = begun[i] - now[i];
        to[i] = weight * difference;
        begun[i] = now[i] = common[i] - difference;
      }
    }
  }

  void update(std::size_t bucket) override {
    const Range range = buckets_->range(bucket);
    update_->run(range, rate_, 1);
    if (overlaps_) return;
    for (const DeviceView to : {parameters_.weights(), begun_.view()}) copy_trained(common_.view(), to, range);
  }

  void finish() override {
    if (!std::exchange(apart_, false)) return;
    if (error_.view()) apply_error();
    copy_trained(common_.view(), parameters_.weights(), whole());
    average_statistics();
  }

  DeviceView gather(DeviceView state) override {
    const DeviceView mean = parameters_.gradients();
    cpu::scale(annulus::floats(state), 1 / static_cast<float>(ranks_), annulus::floats(mean));
    all_reduce_arena(mean);
    return mean;
  }
  void adopt(DeviceView gathered, DeviceView state) override {
    cpu::copy(annulus::floats(gathered), annulus::floats(state));
  }

  DeviceView outer_velocity() override { return keeps_velocity_ ? velocity_.view() : DeviceView{}; }

 private:
  static float* floats(DeviceView arena, const Range& range) { return annulus::floats(arena).data() + range.begin; }

  Range whole() const { return {0, differences_.bytes / sizeof(float)}; }

  void copy_trained(DeviceView from, DeviceView to, const Range& within) const {
    for (const UpdateSegment& segment : trained_) {
      const Range part{std::max(segment.range.begin, within.begin), std::min(segment.range.end, within.end)};
      if (part.begin < part.end) std::copy_n(floats(from, part), part.size(), floats(to, part));
    }
  }

  void all_reduce_arena(DeviceView arena) {
    AllReduce::Ticket last = 0;
    for (std::size_t bucket = 0; bucket < buckets_->size(); ++bucket) {
      const Range range = buckets_->range(bucket);
      last = all_reduce_.enqueue(arena.slice(range.begin * sizeof(float), range.size() * sizeof(float)),
                                 AllReduce::Next::compute, bucket);
    }
    all_reduce_.join(last);
  }

  // Moves the common weights by the differences that 8-bit messages have not yet transferred.
  void apply_error() {
    const std::span error = annulus::floats(error_.view()), common = annulus::floats(common_.view());
    all_reduce_arena(error_.view());
    for (std::size_t i = 0; i < error.size(); ++i) common[i] -= rate_ * error[i];
    std::ranges::fill(error, 0.0f);
  }

  // In one array, because there are many short ones: in the memory of the gradients, which are not needed now.
  void average_statistics() {
    const std::span<float> arena = annulus::floats(parameters_.gradients());
    const auto each = [&](auto visit) {
      for (const UpdateSegment& segment : statistics_)
        visit(std::span(floats(parameters_.weights(), segment.range), segment.range.size()));
    };
    std::size_t count = 0;
    each([&](std::span<float> values) {
      cpu::scale(values, weight_, arena.subspan(count, values.size()));
      count += values.size();
    });
    if (count == 0) return;
    all_reduce_.wait(all_reduce_.enqueue(view_of(arena.first(count)), AllReduce::Next::wait));
    auto mean = arena.begin();
    each([&](std::span<float> values) {
      std::copy_n(mean, values.size(), values.begin());
      mean += static_cast<std::ptrdiff_t>(values.size());
    });
  }

  Device& device_;
  const Parameters& parameters_;
  AllReduce& all_reduce_;
  Optimizer& optimizer_;
  const bool overlaps_;
  const float rate_;
  const std::vector<UpdateSegment> trained_, statistics_;
  const DeviceView differences_;
  Buffer common_;    // the weights without the differences that are not yet all-reduced
  Buffer begun_;     // this rank's weights when it began the round
  Buffer velocity_;  // of the outer optimizer
  Buffer error_;     // see rounding_error(); empty if messages do not round to 8 bits
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
