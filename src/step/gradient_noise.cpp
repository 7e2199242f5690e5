#include "src/step/gradient_noise.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace annulus {
namespace {

constexpr double kForgotten = 0.1;
constexpr std::size_t kMostBlocks = 10;

bool positive(const NoiseSample& mean) {
  return mean.gradient > 0 && mean.noise > 0;
}

// Adds the interval. `sum`: of all samples.
void add_interval(const std::vector<NoiseSample>& samples, const NoiseSample& sum, NoiseScale& found) {
  const std::size_t blocks = std::min(kMostBlocks, samples.size());
  if (blocks < 2) return;
  std::vector<double> without;  // logarithms of the scale
  for (std::size_t block = 0; block < blocks; ++block) {
    NoiseSample rest = sum;
    const Range range = split(samples.size(), blocks, block);
    for (std::size_t i = range.begin; i < range.end; ++i) {
      rest.gradient -= samples[i].gradient;
      rest.noise -= samples[i].noise;
    }
    if (!positive(rest)) return;
    without.push_back(std::log(rest.noise / rest.gradient));
  }
  const auto count = static_cast<double>(blocks);
  double mean = 0, squares = 0;
  for (const double value : without) mean += value / count;
  for (const double value : without) squares += (value - mean) * (value - mean);
  const double error = std::sqrt(squares * (count - 1) / count);
  found.low = found.scale * std::exp(-2 * error);
  found.high = found.scale * std::exp(2 * error);
}

}  // namespace

NoiseSample estimate_noise(const PartNorms& parts, double squared_norm, std::size_t global_batch) {
  const double others = parts.parts - 1;
  return {.gradient = (parts.parts * squared_norm - parts.squares) / others,
          .noise = static_cast<double>(global_batch) * (parts.squares - squared_norm) / others};
}

void GradientNoise::add(const NoiseSample& sample) {
  if (!std::isfinite(sample.gradient) || !std::isfinite(sample.noise)) return;
  const double share = samples_.empty() ? 1 : kForgotten;
  recent_.gradient += share * (sample.gradient - recent_.gradient);
  recent_.noise += share * (sample.noise - recent_.noise);
  samples_.push_back(sample);
}

std::optional<double> GradientNoise::recent() const {
  return positive(recent_) ? std::optional(recent_.noise / recent_.gradient) : std::nullopt;
}

std::optional<NoiseScale> GradientNoise::all() const {
  NoiseSample sum;
  for (const NoiseSample& sample : samples_) {
    sum.gradient += sample.gradient;
    sum.noise += sample.noise;
  }
  if (!positive(sum)) return {};
  const auto steps = static_cast<double>(samples_.size());
  NoiseScale found{.scale = sum.noise / sum.gradient,
                   .gradient = sum.gradient / steps,
                   .noise = sum.noise / steps,
                   .steps = samples_.size()};
  add_interval(samples_, sum, found);
  return found;
}

void PartNormProbe::begin_step(std::size_t global_batch) {
  active_ = std::exchange(requested_, false);
  global_batch_ = static_cast<double>(global_batch);
  measured_ = 0;
  found_ = {};
}

void PartNormProbe::ready(std::size_t gradients) {
  if (!active_) return;
  if (measured_ == 0) settle();
  optimizer_.add_squares({measured_, gradients});
  measured_ = gradients;
}

void PartNormProbe::end_part(std::size_t samples) {
  if (!active_) return;
  measured_ = 0;
  ended_ = samples;
}

// The arena holds the sum of the part's gradients / global batch: its mean gradient is that / the part's share.
void PartNormProbe::settle() {
  if (ended_ == 0) return;
  const double share = static_cast<double>(std::exchange(ended_, 0)) / global_batch_;
  found_.squares += optimizer_.take_squares() / share;
  ++found_.parts;
}

PartNorms PartNormProbe::take() {
  settle();
  return std::exchange(found_, {});
}

}  // namespace annulus
