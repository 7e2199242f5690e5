#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/update.h"
#include "tests/unit/random_values.h"

// Reference implementations of the rules of kernels/update.h, in double precision and one parameter at a time.
namespace annulus::test {

struct NaiveArenas {
  std::vector<double> weights, gradients, first, second;
};

inline double norm(const std::vector<double>& values, const Range& range) {
  double sum = 0;
  for (std::size_t i = range.begin; i < range.end; ++i) sum += values[i] * values[i];
  return std::sqrt(sum);
}

// The norm of all trained parameters, in segments.
inline double gradient_norm(const std::vector<float>& gradients, const std::vector<UpdateSegment>& segments) {
  double sum = 0;
  for (const UpdateSegment& segment : segments)
    for (std::size_t i = segment.range.begin; trained(segment.role) && i < segment.range.end; ++i)
      sum += static_cast<double>(gradients[i]) * gradients[i];
  return std::sqrt(sum);
}

// Clips the gradients of trained parameters; the others are not changed.
inline std::vector<float> naive_clip(std::vector<float> gradients, const std::vector<UpdateSegment>& segments,
                                     double limit) {
  const double factor = std::min(1.0, limit / gradient_norm(gradients, segments));
  for (const UpdateSegment& segment : segments)
    for (std::size_t i = segment.range.begin; trained(segment.role) && i < segment.range.end; ++i)
      gradients[i] = static_cast<float>(factor * gradients[i]);
  return gradients;
}

inline void naive_update(const UpdateRule& rule, NaiveArenas& a, const UpdateSegment& segment, double rate,
                         double step) {
  const double of_rule = std::visit([](const auto& one) { return double{one.weight_decay}; }, rule);
  const auto& own = segment.factors.weight_decay;
  const double decay = own ? double{*own} : segment.role == Role::weight ? of_rule : 0;
  double local = 1;
  if (const auto* lars = std::get_if<Lars>(&rule); lars != nullptr && segment.role == Role::weight) {
    const double w = norm(a.weights, segment.range), g = norm(a.gradients, segment.range);
    if (w > 0 && g > 0) local = lars->trust * w / (g + decay * w);
  }
  rate *= segment.factors.rate;
  for (std::size_t i = segment.range.begin; i < segment.range.end; ++i) {
    double &w = a.weights[i], &v = a.first[i], &s = a.second[i];
    const double g = a.gradients[i];
    if (segment.role == Role::metric) continue;
    if (segment.role == Role::statistic) {
      w += segment.statistic_momentum * (g - w);
    } else if (const auto* sgd = std::get_if<Sgd>(&rule)) {
      const double decayed = g + decay * w;
      v = sgd->momentum * v + decayed;
      w -= rate * (sgd->nesterov ? decayed + sgd->momentum * v : v);
    } else if (const auto* lars = std::get_if<Lars>(&rule)) {
      v = lars->momentum * v + rate * local * (g + decay * w);
      w -= v;
    } else {
      const auto& adam = std::get<AdamW>(rule);
      const double beta1 = adam.beta1, beta2 = adam.beta2;
      v = beta1 * v + (1 - beta1) * g;
      s = beta2 * s + (1 - beta2) * g * g;
      const double mean = v / (1 - std::pow(beta1, step)), square = s / (1 - std::pow(beta2, step));
      w -= rate * (mean / (std::sqrt(square) + adam.epsilon) + decay * w);
    }
  }
}

inline const std::vector<UpdateRule> kRules{Sgd{.momentum = 0}, Sgd{.momentum = 0.9f, .weight_decay = 0.01f},
                                            Sgd{.momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true},
                                            Lars{.momentum = 0.9f, .weight_decay = 0.01f, .trust = 0.02f},
                                            AdamW{.epsilon = 1e-6f, .weight_decay = 0.05f}};

// Parameters of every role in slots of 16 floats, some of a single slot, one of many blocks of threads, and one whose
// weights are all 0. Some have a rate or a weight decay of their own.
inline std::vector<UpdateSegment> some_segments() {
  std::vector<UpdateSegment> segments;
  std::size_t at = 0;
  for (const auto& [size, role] : {std::pair<std::size_t, Role>{16, Role::metric},
                                   {16, Role::metric},
                                   {16, Role::offset},
                                   {48, Role::weight},
                                   {32, Role::statistic},
                                   {40000, Role::weight},
                                   {16, Role::weight},
                                   {16, Role::statistic},
                                   {160, Role::offset},
                                   {3200, Role::weight},
                                   {33600, Role::offset}}) {
    segments.push_back({{at, at + size}, role});
    at += size;
  }
  segments[3].factors.rate = 0.25f;
  segments[5].factors.weight_decay = 0.02f;
  segments[8].factors.weight_decay = 0.03f;
  segments[9].factors.rate = 0;
  segments[7].statistic_momentum = 0.0003f;
  return segments;
}
constexpr std::size_t kZeroSegment = 6;

// Slices of an arena of these segments, from its end; of whole parameters or not.
inline std::vector<Range> some_slices(bool whole) {
  const auto segments = some_segments();
  const std::size_t cut = whole ? segments[6].range.begin : segments[5].range.begin + 1204;
  return {{cut, segments.back().range.end}, {segments[2].range.end, cut}, {0, segments[2].range.end}};
}

}  // namespace annulus::test
