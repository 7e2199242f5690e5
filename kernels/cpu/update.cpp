#include "kernels/cpu/update.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/loops/for_each_element.h"
#include "kernels/cpu/loops/squares.h"
#include "kernels/cpu/muon.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/divergence.h"

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

// Calls update(i), which returns the new weight, for each i below `size`, like for_each_element(). Returns whether all
// weights are finite: then, and only then, the weights times 0 add up to 0, not NaN.
template <class Body>
bool update_each(std::size_t size, const Body& update) {
  const auto end = static_cast<std::ptrdiff_t>(size);
  float zeros = 0;
#pragma omp parallel if (end >= kParallelElements)
  {
    const Body own = update;
#pragma omp for simd schedule(static) reduction(+ : zeros)
    for (std::ptrdiff_t i = 0; i < end; ++i) zeros += own(i) * 0;
  }
  return zeros == 0;
}

template <bool kNesterov>
bool sgd(const UpdateSlice& s, const Sgd& rule, float rate) {
  return update_each(s.size, [w = s.weights, g = s.gradients, v = s.first_state, decay = s.weight_decay,
                              momentum = rule.momentum, rate](auto i) {
    const float gradient = g[i] + decay * w[i];
    v[i] = momentum * v[i] + gradient;
    return w[i] -= rate * (kNesterov ? gradient + momentum * v[i] : v[i]);
  });
}

bool lars(const UpdateSlice& s, const Lars& rule, float rate) {
  return update_each(s.size, [w = s.weights, g = s.gradients, v = s.first_state, decay = s.weight_decay,
                              momentum = rule.momentum, rate](auto i) {
    v[i] = momentum * v[i] + rate * (g[i] + decay * w[i]);
    return w[i] -= v[i];
  });
}

bool adamw(const UpdateSlice& s, const AdamW& rule, float rate, std::uint64_t step) {
  // 1 / (1 - beta^step)
  const auto correction = [&](float beta) {
    return static_cast<float>(1 / (1 - std::pow(double{beta}, static_cast<double>(step))));
  };
  return update_each(
      s.size, [w = s.weights, g = s.gradients, m = s.first_state, v = s.second_state, decay = s.weight_decay,
               beta1 = rule.beta1, beta2 = rule.beta2, epsilon = rule.epsilon, rate,
               correction1 = correction(rule.beta1), correction2 = correction(rule.beta2)](auto i) {
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
        return w[i] -= rate * (m[i] * correction1 / (std::sqrt(v[i] * correction2) + epsilon) + decay * w[i]);
      });
}

// Moves a matrix in the direction that is in the second state.
bool muon(const UpdateSlice& s, float scale, float rate) {
  return update_each(s.size, [w = s.weights, o = s.second_state, decay = s.weight_decay, scale, rate](auto i) {
    return w[i] -= rate * (scale * o[i] + decay * w[i]);
  });
}

class ArenaUpdate : public Update, public Divergence {
 public:
  ArenaUpdate(const UpdateRule& rule, const UpdateArenas& arenas, const std::vector<UpdateSegment>& segments)
      : rule_(rule), arenas_(arenas), places_(arenas.kept), segments_(segments), local_rates_(segments.size(), 1.0f) {
    if (arenas_.kept.empty()) arenas_.kept = {{0, floats(arenas_.gradients).size()}};
    if (const auto* muon = std::get_if<Muon>(&rule_)) directions_ = make_muon_directions(*muon, arenas, segments_);
  }

  void run(const Range& slice, float rate, std::uint64_t step) override {
    if (slice.size() == 0) return;
    const std::size_t place = places_.of(slice.begin);
    for_each_part(slice, [&](const UpdateSegment& segment, const Range& part) {
      update(part, place + part.begin - slice.begin, segment, rate * segment.factors.rate * local_rate(segment), step);
    });
    if (arenas_.averaging.moves_in(step)) move_average(slice, place, step);
  }

  bool diverged() const override { return diverged_; }
  void forget() override { diverged_ = false; }

  void measure_parameters(const Range& slice) override {
    if (directions_)
      directions_->compute(slice);
    else
      compute_local_rates(slice);
  }

  void clip(float limit) override {
    measure_norm();
    if (norms_.last <= limit) return;
    const auto factor = static_cast<float>(limit / norms_.last);
    for (const UpdateSegment& segment : segments_)
      if (trained(segment.role))
        for_each_kept(segment.range, [&](const Range& part) {
          const std::span<float> gradients = within(arenas_.gradients, part);
          scale(gradients, factor, gradients);
        });
  }

  void include(const std::function<double(double squares)>& all) override { all_ = all; }

  void measure_norm() override {
    ExactSum sum;
    for (const UpdateSegment& segment : segments_)
      if (trained(segment.role)) sum += kept_squares(arenas_.gradients, segment.range);
    sum_over_ranks({&sum, 1});
    const double norm = std::sqrt(all_ ? all_(sum.value()) : sum.value());
    norms_ += {norm, norm, norm, 1};
  }

  GradientNorms take_norms() override { return std::exchange(norms_, {}); }

  void add_squares(const Range& slice) override {
    for_each_part(slice, [&](const UpdateSegment& segment, const Range& part) {
      if (trained(segment.role)) squares_ += squares(within(arenas_.gradients, part));
    });
  }
  double take_squares() override { return std::exchange(squares_, {}).value(); }

 private:
  // `place`: the slice's place in the average.
  void move_average(const Range& slice, std::size_t place, std::uint64_t step) {
    const Averaging& averaging = arenas_.averaging;
    const std::span<float> weights = within(arenas_.weights, slice);
    const std::span<float> average = within(arenas_.average, {place, place + slice.size()});
    move_towards(weights, average, averaging.share(step));
    if (averaging.looks_ahead()) copy(average, weights);
  }

  void compute_local_rates(const Range& slice) {
    std::vector<ExactSum> sums;  // squared weights and squared gradients
    for_each_weight(slice, [&](const UpdateSegment& segment) {
      sums.push_back(kept_squares(arenas_.weights, segment.range));
      sums.push_back(kept_squares(arenas_.gradients, segment.range));
    });
    sum_over_ranks(sums);
    for_each_weight(slice, [&, next = sums.begin()](const UpdateSegment& segment) mutable {
      const double weights = std::sqrt((next++)->value()), gradients = std::sqrt((next++)->value());
      local_rate(segment) = weights == 0 || gradients == 0
                                ? 1
                                : static_cast<float>(std::get<Lars>(rule_).trust * weights /
                                                     (gradients + weight_decay(rule_, segment) * weights));
    });
  }

  static std::span<float> within(DeviceView arena, const Range& slice) {
    return floats(arena).subspan(slice.begin, slice.size());
  }

  // Calls visit(segment, its part in the slice) for each segment in the slice.
  template <class Visit>
  void for_each_part(const Range& slice, Visit visit) const {
    const auto first = std::ranges::upper_bound(segments_, slice.begin, {}, [](const auto& s) { return s.range.end; });
    for (auto segment = first; segment != segments_.end() && segment->range.begin < slice.end; ++segment)
      visit(*segment, Range{std::max(slice.begin, segment->range.begin), std::min(slice.end, segment->range.end)});
  }

  // Calls visit(segment) for each weight in the slice.
  template <class Visit>
  void for_each_weight(const Range& slice, Visit visit) const {
    for_each_part(slice, [&](const UpdateSegment& segment, const Range&) {
      if (segment.role == Role::weight) visit(segment);
    });
  }

  // Calls visit(part) for each part of the slice that this rank keeps.
  template <class Visit>
  void for_each_kept(const Range& slice, Visit visit) const {
    const auto& all = arenas_.kept;
    const auto first = std::ranges::upper_bound(all, slice.begin, {}, &Range::end);
    for (auto kept = first; kept != all.end() && kept->begin < slice.end; ++kept)
      if (kept->size() > 0) visit(Range{std::max(slice.begin, kept->begin), std::min(slice.end, kept->end)});
  }

  ExactSum kept_squares(DeviceView arena, const Range& slice) const {
    ExactSum sum;
    for_each_kept(slice, [&](const Range& part) { sum += squares(within(arena, part)); });
    return sum;
  }

  void sum_over_ranks(std::span<ExactSum> sums) const {
    if (!arenas_.sum_over_ranks) return;
    std::vector<float> digits(sums.size() * ExactSum::kDigits);
    const auto of = [&](const ExactSum& sum) {
      return ExactSum::Digits(digits.data() + (&sum - sums.data()) * ExactSum::kDigits, ExactSum::kDigits);
    };
    for (const ExactSum& sum : sums) sum.write(of(sum));
    arenas_.sum_over_ranks(view_of(digits));
    for (ExactSum& sum : sums) sum.read(of(sum));
  }

  float& local_rate(const UpdateSegment& segment) {
    return local_rates_[static_cast<std::size_t>(&segment - segments_.data())];
  }

  // `place`: the part's place in the states.
  void update(const Range& part, std::size_t place, const UpdateSegment& segment, float rate, std::uint64_t step) {
    if (segment.role == Role::metric || step > segment.factors.last_step) return;
    const auto state = [&](std::size_t number) {
      const DeviceView arena = arenas_.states[number];
      return arena ? floats(arena).data() + place : nullptr;
    };
    const std::span<float> weights = within(arenas_.weights, part);
    const std::span<const float> gradients = within(arenas_.gradients, part);
    if (segment.role == Role::statistic) {
      move_towards(gradients, weights, segment.statistic_momentum);
      note(std::ranges::all_of(weights, [](float value) { return std::isfinite(value); }));
      return;
    }
    const UpdateSlice slice{part.size(), weights.data(), gradients.data(),
                            state(0),    state(1),       weight_decay(rule_, segment)};
    std::visit([&](const auto& rule) { note(apply(rule, segment, slice, rate, step)); }, rule_);
  }

  static bool apply(const Sgd& rule, const UpdateSegment&, const UpdateSlice& slice, float rate, std::uint64_t) {
    return rule.nesterov ? sgd<true>(slice, rule, rate) : sgd<false>(slice, rule, rate);
  }
  static bool apply(const AdamW& rule, const UpdateSegment&, const UpdateSlice& slice, float rate, std::uint64_t step) {
    return adamw(slice, rule, rate, step);
  }
  static bool apply(const Lars& rule, const UpdateSegment&, const UpdateSlice& slice, float rate, std::uint64_t) {
    return lars(slice, rule, rate);
  }
  static bool apply(const Muon& rule, const UpdateSegment& segment, const UpdateSlice& slice, float rate,
                    std::uint64_t step) {
    if (segment.factors.orthogonalizes)
      return muon(slice, orthogonal_scale(rule, matrix_size(segment.tensor.shape)), rate);
    return std::visit([&](const auto& other) { return apply(other, segment, slice, rate, step); }, rule.others);
  }

  void note(bool finite) {
    if (!finite) diverged_ = true;
  }

  const UpdateRule rule_;
  UpdateArenas arenas_;
  const KeptPlaces places_;
  const std::vector<UpdateSegment> segments_;
  std::vector<float> local_rates_;  // for each segment: with LARS, from the last measure_parameters(); else 1
  std::unique_ptr<MuonDirections> directions_;
  GradientNorms norms_;
  std::function<double(double)> all_;  // see include()
  ExactSum squares_;
  std::atomic<bool> diverged_ = false;
};

}  // namespace

std::unique_ptr<Update> plan_update(const UpdateRule& rule, const UpdateArenas& arenas,
                                    const std::vector<UpdateSegment>& segments) {
  return std::make_unique<ArenaUpdate>(rule, arenas, segments);
}

}  // namespace annulus::cpu
