#include "kernels/cpu/update.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/flat.h"
#include "kernels/cpu/for_each_element.h"

namespace annulus::cpu {
namespace {

// The data that a rule reads and writes for a range of parameters.
struct UpdateSlice {
  std::size_t size;
  float* weights;
  const float* gradients;
  float *first_state, *second_state;
  float weight_decay;
};

template <bool kNesterov>
void sgd(const UpdateSlice& s, const Sgd& rule, float rate) {
  for_each_element(s.size, [w = s.weights, g = s.gradients, v = s.first_state, decay = s.weight_decay,
                            momentum = rule.momentum, rate](auto i) {
    const float gradient = g[i] + decay * w[i];
    v[i] = momentum * v[i] + gradient;
    w[i] -= rate * (kNesterov ? gradient + momentum * v[i] : v[i]);
  });
}

void lars(const UpdateSlice& s, const Lars& rule, float rate) {
  for_each_element(s.size, [w = s.weights, g = s.gradients, v = s.first_state, decay = s.weight_decay,
                            momentum = rule.momentum, rate](auto i) {
    v[i] = momentum * v[i] + rate * (g[i] + decay * w[i]);
    w[i] -= v[i];
  });
}

void adamw(const UpdateSlice& s, const AdamW& rule, float rate, std::uint64_t step) {
  // 1 / (1 - beta^step)
  const auto correction = [&](float beta) {
    return static_cast<float>(1 / (1 - std::pow(double{beta}, static_cast<double>(step))));
  };
  for_each_element(s.size, [w = s.weights, g = s.gradients, m = s.first_state, v = s.second_state,
                            decay = s.weight_decay, beta1 = rule.beta1, beta2 = rule.beta2, epsilon = rule.epsilon,
                            rate, correction1 = correction(rule.beta1), correction2 = correction(rule.beta2)](auto i) {
    m[i] = beta1 * m[i] + (1 - beta1) * g[i];
    v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    w[i] -= rate * (m[i] * correction1 / (std::sqrt(v[i] * correction2) + epsilon) + decay * w[i]);
  });
}

// Adds up each block, and then the blocks in their order, so the result does not depend on the number of threads.
double squares(const float* values, std::size_t size) {
  constexpr std::size_t kBlock = 4096;
  std::vector<double> sums((size + kBlock - 1) / kBlock);
#pragma omp parallel for schedule(static) if (size >= static_cast <std::size_t>(kParallelElements))
  for (std::size_t block = 0; block < sums.size(); ++block) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = block * kBlock; i < std::min(size, (block + 1) * kBlock); ++i)
      sum += static_cast<double>(values[i]) * values[i];
    sums[block] = sum;
  }
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum;
}

float local_rate(const UpdateSlice& s, const Lars& rule) {
  const double weights = std::sqrt(squares(s.weights, s.size)), gradients = std::sqrt(squares(s.gradients, s.size));
  if (weights == 0 || gradients == 0) return 1;
  return static_cast<float>(rule.trust * weights / (gradients + s.weight_decay * weights));
}

class ArenaUpdate : public Update {
 public:
  ArenaUpdate(const UpdateRule& rule, const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments)
      : rule_(rule), arenas_(arenas), segments_(segments) {}

  void run(const Range& slice, float rate, std::uint64_t step) override {
    for_each_part(slice, [&](const UpdateSegment& segment, const Range& part) {
      update(part, segment, rate * segment.factors.rate, step);
    });
    if (!arenas_.average || slice.size() == 0) return;
    const auto in_slice = [&](DeviceView view) { return floats(view).subspan(slice.begin, slice.size()); };
    move_towards(in_slice(arenas_.weights), in_slice(arenas_.average), average_share(arenas_.average_decay, step));
  }

  void clip(float limit) override {
    measure_norm();
    if (norms_.last <= limit) return;
    const auto factor = static_cast<float>(limit / norms_.last);
    for (const UpdateSegment& segment : segments_)
      if (trained(segment.role)) scale(gradients(segment), factor, gradients(segment));
  }

  void measure_norm() override {
    const double norm = gradient_norm();
    norms_ += {norm, norm, norm, 1};
  }

  GradientNorms take_norms() override { return std::exchange(norms_, {}); }

  void add_squares(const Range& slice) override {
    for_each_part(slice, [&](const UpdateSegment& segment, const Range& part) {
      if (trained(segment.role)) squares_ += squares(floats(arenas_.gradients).data() + part.begin, part.size());
    });
  }
  double take_squares() override { return std::exchange(squares_, 0); }

  void begin_average() override {
    if (arenas_.average) copy(floats(arenas_.weights), floats(arenas_.average));
  }
  void swap_average() override {
    if (arenas_.average) std::ranges::swap_ranges(floats(arenas_.weights), floats(arenas_.average));
  }

 private:
  // Calls visit(segment, its part in the slice) for each segment in the slice.
  template <class Visit>
  void for_each_part(const Range& slice, Visit visit) const {
    const auto first = std::ranges::upper_bound(segments_, slice.begin, {}, [](const auto& s) { return s.range.end; });
    for (auto segment = first; segment != segments_.end() && segment->range.begin < slice.end; ++segment)
      visit(*segment, Range{std::max(slice.begin, segment->range.begin), std::min(slice.end, segment->range.end)});
  }

  std::span<float> gradients(const UpdateSegment& segment) const {
    return floats(arenas_.gradients).subspan(segment.range.begin, segment.range.size());
  }

  double gradient_norm() const {
    double sum = 0;
    for (const UpdateSegment& segment : segments_)
      if (trained(segment.role)) sum += squares(gradients(segment).data(), segment.range.size());
    return std::sqrt(sum);
  }

  void update(const Range& part, const UpdateSegment& segment, float rate, std::uint64_t step) const {
    if (segment.role == Role::metric) return;
    const UpdateSlice slice = at(part, weight_decay(rule_, segment));
    if (segment.role == Role::statistic)
      return move_towards({slice.gradients, slice.size}, {slice.weights, slice.size}, segment.statistic_momentum);
    if (const auto* rule = std::get_if<Sgd>(&rule_)) {
      if (rule->nesterov)
        sgd<true>(slice, *rule, rate);
      else
        sgd<false>(slice, *rule, rate);
    }
    if (const auto* rule = std::get_if<AdamW>(&rule_)) adamw(slice, *rule, rate, step);
    if (const auto* rule = std::get_if<Lars>(&rule_))
      lars(slice, *rule, segment.role == Role::weight ? rate * local_rate(slice, *rule) : rate);
  }

  UpdateSlice at(const Range& part, float decay) const {
    const auto from = [&](DeviceView view) { return view ? floats(view).data() + part.begin : nullptr; };
    return {
        part.size(), from(arenas_.weights), from(arenas_.gradients), from(arenas_.states[0]), from(arenas_.states[1]),
        decay};
  }

  UpdateRule rule_;
  UpdateArenas arenas_;
  std::vector<UpdateSegment> segments_;
  GradientNorms norms_;
  double squares_ = 0;
};

}  // namespace

std::unique_ptr<Update> plan_update(const UpdateRule& rule, const UpdateArenas& arenas,
                                    const std::vector<UpdateSegment>& segments) {
  return std::make_unique<ArenaUpdate>(rule, arenas, segments);
}

}  // namespace annulus::cpu
