#include "src/step/gradient_noise.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

namespace annulus {
namespace {

constexpr double kForgotten = 0.1;
constexpr std::size_t kMostBlocks = 10;

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void add_interval(std::span<const double> scales, NoiseScale& found) {
  const std::size_t blocks = std::min(kMostBlocks, scales.size());
  if (blocks < 2) return;
  double squares = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    const Range range = split(scales.size(), blocks, block);
    const double distance = mean(scales.subspan(range.begin, range.size())) - found.scale;
    squares += distance * distance;
  }
  const double error = std::sqrt(squares / static_cast<double>(blocks * (blocks - 1))) / found.scale;
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
  const double share = steps_++ == 0 ? 1 : kForgotten;
  recent_.gradient += share * (sample.gradient - recent_.gradient);
  recent_.noise += share * (sample.noise - recent_.noise);
  sum_.gradient += sample.gradient;
  sum_.noise += sample.noise;
  if (const auto scale = recent()) scales_.push_back(*scale);
}

std::optional<double> GradientNoise::recent() const {
  const bool positive = recent_.gradient > 0 && recent_.noise > 0;
  return positive ? std::optional(recent_.noise / recent_.gradient) : std::nullopt;
}

std::optional<NoiseScale> GradientNoise::all() const {
  if (scales_.empty()) return {};
  const auto steps = static_cast<double>(steps_);
  NoiseScale found{
      .scale = mean(scales_), .gradient = sum_.gradient / steps, .noise = sum_.noise / steps, .steps = steps_};
  add_interval(scales_, found);
  return found;
}

void PartNormProbe::begin_step(std::size_t global_batch) {
  active_ = std::exchange(requested_, false);
  global_batch_ = static_cast<double>(global_batch);
  measured_ = 0;
  found_ = {};
}

bool PartNormProbe::ready(std::size_t gradients) {
  if (!active_) return false;
  if (measured_ == 0) settle();
  optimizer_.add_squares({measured_, gradients});
  measured_ = gradients;
  return true;
}

void PartNormProbe::end_part(std::size_t samples) {
  if (!active_) return;
  measured_ = 0;
  ended_ = samples;
}

// The arena holds the sum of the part's gradients / global batch: the part's mean gradient is that / the part's share.
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
