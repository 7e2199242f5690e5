#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/base/split.h"
#include "src/step/optimizer.h"

namespace annulus {

// The gradient-noise scale tr(Sigma) / |G|^2: G is the gradient of the whole distribution of samples, Sigma the
// covariance of a single sample's gradient. In batches much smaller than it, gradients are mostly noise, and doubling
// the batch halves the number of steps; in much larger ones it saves next to none. (McCandlish, Kaplan, Amodei and
// OpenAI Dota Team, "An empirical model of large-batch training", 2018, appendix A.1, where it is B_simple.)

// Sums over parts of a global batch, each of them the share of a rank or a part of it.
struct PartNorms {
  double squares = 0;  // |mean gradient of the part's samples|^2, weighted with the part's share of the batch
  double parts = 0;
};

// Unbiased estimates from one step.
struct NoiseSample {
  double gradient = 0;  // |G|^2; may be negative
  double noise = 0;     // tr(Sigma); may be negative
};

// `squared_norm`: of the mean gradient of the global batch. The norms' expectations are |G|^2 + tr(Sigma) / B for the
// whole batch of B samples, and |G|^2 + M tr(Sigma) / B for the weighted mean of M parts, whatever their sizes.
// REQUIRES: at least two parts.
NoiseSample estimate_noise(const PartNorms& parts, double squared_norm, std::size_t global_batch);

struct NoiseScale {
  // In samples: the mean of recent() over the steps, because the scale grows while training, and every step makes its
  // progress at the scale of its time.
  double scale = 0;
  // About 95 %: two standard errors of the logarithm, from the means of ten consecutive blocks of steps, so the growth
  // widens it. Empty with fewer than two values.
  std::optional<double> low{}, high{};
  double gradient = 0, noise = 0;  // means over the steps
  std::size_t steps = 0;           // that were measured
};

// Averages the estimates of steps, numerator and denominator separately, since their ratio is not unbiased.
class GradientNoise {
 public:
  void add(const NoiseSample& sample);  // ignored if it is not finite

  // The last steps' statistics: exponential moving averages that forget a tenth with each measured step. Empty before
  // the first step, and while an average is not positive.
  std::optional<double> recent() const;
  std::optional<NoiseScale> all() const;  // of all steps; empty if no step had a value

 private:
  NoiseSample sum_, recent_;
  std::size_t steps_ = 0;
  std::vector<double> scales_;  // recent() after each step, if it had a value
};

// Takes the norms of a rank's parts of a step while backward computes their gradients in the arena, before these are
// all-reduced in place.
class PartNormProbe {
 public:
  explicit PartNormProbe(Optimizer& optimizer) : optimizer_(optimizer) {}

  void request() { requested_ = true; }  // measures the next step
  void begin_step(std::size_t global_batch);
  // Of the part [0, gradients) are final, in floats. Returns whether it enqueued work that reads some of them.
  bool ready(std::size_t gradients);
  void end_part(std::size_t samples);
  PartNorms take();  // of the last step; no parts if it was not measured

 private:
  void settle();

  Optimizer& optimizer_;
  bool requested_ = false, active_ = false;
  double global_batch_ = 0;
  std::size_t measured_ = 0;  // floats of the current part
  std::size_t ended_ = 0;     // samples of a part that has ended; the device may still compute the norm
  PartNorms found_;
};

}  // namespace annulus
