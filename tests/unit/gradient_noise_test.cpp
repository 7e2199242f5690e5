#include "src/step/gradient_noise.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>

namespace annulus {

namespace {

using Gradient = std::array<double, 2>;

// All gradients that a sample can have, equally likely: |G|^2 = 2^2 + 1^2 = 5, tr(Sigma) = 14/3 + 2 = 20/3.
constexpr std::array<Gradient, 3> kGradients{{{0, 1}, {1, 1 + 1.7320508075688772}, {5, 1 - 1.7320508075688772}}};
constexpr double kSquaredGradient = 5, kNoise = 14.0 / 3 + 2;

double squared(const Gradient& g) {
  return g[0] * g[0] + g[1] * g[1];
}

// The mean gradient of samples, each the number of one in kGradients.
Gradient mean(const std::vector<std::size_t>& samples) {
  Gradient sum{};
  for (const std::size_t sample : samples)
    for (std::size_t i = 0; i < 2; ++i) sum[i] += kGradients[sample][i] / static_cast<double>(samples.size());
  return sum;
}

// The estimate from a batch that is cut into parts of these sizes.
NoiseSample estimate(const std::vector<std::size_t>& batch, const std::vector<std::size_t>& sizes) {
  PartNorms parts;
  auto begin = batch.begin();
  for (const std::size_t size : sizes) {
    const auto end = begin + static_cast<std::ptrdiff_t>(size);
    parts.squares += squared(mean({begin, end})) * static_cast<double>(size) / static_cast<double>(batch.size());
    ++parts.parts;
    begin = end;
  }
  return estimate_noise(parts, squared(mean(batch)), batch.size());
}

}  // namespace

TEST_CASE("over all batches, the estimates' means are the squared gradient and the noise") {
  const std::vector<std::size_t> sizes = GENERATE(std::vector<std::size_t>{1, 1}, std::vector<std::size_t>{1, 2},
                                                  std::vector<std::size_t>{1, 1, 3}, std::vector<std::size_t>{2, 2, 2});
  std::size_t size = 0;
  for (const std::size_t of_part : sizes) size += of_part;
  const auto batches = static_cast<std::size_t>(std::pow(3, size));
  NoiseSample sum;
  for (std::size_t number = 0; number < batches; ++number) {
    std::vector<std::size_t> batch;
    for (std::size_t rest = number; batch.size() < size; rest /= 3) batch.push_back(rest % 3);
    const NoiseSample found = estimate(batch, sizes);
    sum.gradient += found.gradient / static_cast<double>(batches);
    sum.noise += found.noise / static_cast<double>(batches);
  }
  CHECK(sum.gradient == Approx(kSquaredGradient));
  CHECK(sum.noise == Approx(kNoise));
}

TEST_CASE("numerator and denominator are averaged separately") {
  GradientNoise noise;
  CHECK_FALSE(noise.recent());
  CHECK_FALSE(noise.all());
  noise.add({.gradient = -1, .noise = 8});
  CHECK_FALSE(noise.recent());  // not -8
  CHECK_FALSE(noise.all());
  noise.add({.gradient = 3, .noise = 4});
  noise.add({.gradient = INFINITY, .noise = 4});  // a step that loss scaling skips
  CHECK_FALSE(noise.recent());
  CHECK_FALSE(noise.all());
  noise.add({.gradient = 20, .noise = 10});
  const double recent = (0.9 * (0.9 * 8 + 0.1 * 4) + 0.1 * 10) / (0.9 * (-0.9 + 0.1 * 3) + 0.1 * 20);
  CHECK(*noise.recent() == Approx(recent));
  CHECK(noise.all()->scale == Approx(recent));  // of the only step that has a value
  CHECK(noise.all()->steps == 3);
  CHECK(noise.all()->gradient == Approx(22.0 / 3));
  CHECK(noise.all()->noise == Approx(22.0 / 3));
  CHECK_FALSE(noise.all()->low);
}

TEST_CASE("the scale of a run is the mean of its steps' scales, with an interval from blocks") {
  GradientNoise noise;
  noise.add({.gradient = 1, .noise = 4});
  noise.add({.gradient = 1, .noise = 16});  // 4, then 0.9 * 4 + 1.6 = 5.2
  CHECK(noise.all()->scale == Approx(4.6));
  // The standard error of a mean of two is half of their distance.
  CHECK(*noise.all()->low == Approx(4.6 * std::exp(-2 * 0.6 / 4.6)));
  CHECK(*noise.all()->high == Approx(4.6 * std::exp(2 * 0.6 / 4.6)));
  GradientNoise constant;
  for (int step = 0; step < 25; ++step) constant.add({.gradient = 0.5, .noise = 64});
  CHECK(constant.all()->scale == Approx(128));
  CHECK(*constant.all()->low == Approx(128));
  CHECK(*constant.all()->high == Approx(128));
}

}  // namespace annulus
