// Updates on the CPU against their formulas in double precision.

#include "kernels/cpu/update.h"

#include <catch2/catch.hpp>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/divergence.h"
#include "tests/unit/update_rules.h"

namespace annulus {
namespace {

using test::random_values;

struct Arena {
  explicit Arena(std::vector<float> initial) : values(std::move(initial)) {}
  DeviceView view() { return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)}; }

  std::vector<float> values;
};

double distance(const std::vector<float>& ours, const std::vector<double>& expected) {
  double most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) most = std::max(most, std::abs(ours[i] - expected[i]));
  return most;
}

bool diverged(const Update& update) {
  return dynamic_cast<const Divergence&>(update).diverged();
}

}  // namespace

TEST_CASE("updates match their formulas, in any slices and on any number of threads") {
  const UpdateRule rule = GENERATE(from_range(test::kRules));
  const int threads = GENERATE(1, 2);
  cpu::CpuDevice device(threads);
  const auto segments = test::some_segments();
  const std::size_t size = segments.back().range.end;
  Arena weights(random_values(size, 1)), gradients(random_values(size, 2)), first{std::vector<float>(size)},
      second{std::vector<float>(size)};
  const Range zero = segments[test::kZeroSegment].range;
  std::fill(weights.values.begin() + static_cast<long>(zero.begin),
            weights.values.begin() + static_cast<long>(zero.end), 0.0f);
  test::NaiveArenas naive{
      {weights.values.begin(), weights.values.end()}, {}, std::vector<double>(size), std::vector<double>(size)};
  const auto update = cpu::plan_update(
      rule, {weights.view(), gradients.view(), {}, {first.view(), states(rule) > 1 ? second.view() : DeviceView{}}},
      segments);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    std::ranges::copy(random_values(size, 10 + step), gradients.values.begin());  // at the same addresses
    naive.gradients.assign(gradients.values.begin(), gradients.values.end());
    const float rate = 0.1f / static_cast<float>(step);
    const bool whole = needs_whole_parameters(rule);
    for (const Range& slice : test::some_slices(whole)) {
      if (whole) update->measure_parameters(slice);
      update->run(slice, rate, step);
    }
    for (const UpdateSegment& segment : segments)
      test::naive_update(rule, naive, segment, double{rate}, static_cast<double>(step));
  }
  CAPTURE(rule.index(), threads);
  CHECK(distance(weights.values, naive.weights) < 2e-6);
  CHECK(distance(first.values, naive.first) < 2e-6);
  CHECK(distance(second.values, naive.second) < 2e-6);
  CHECK(states(rule) == (std::holds_alternative<AdamW>(rule) ? 2 : 1));
}

TEST_CASE("an update that makes a weight or a statistic not finite is noticed") {
  const UpdateRule rule = GENERATE(from_range(test::kRules));
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity());
  const auto segments = test::some_segments();
  const std::size_t size = segments.back().range.end;
  cpu::CpuDevice device(2);
  for (const std::size_t at :
       std::initializer_list<std::size_t>{16, 40, 120, 20000, 40170, size - 1}) {  // some of each role
    Arena weights(random_values(size, 1)), gradients(random_values(size, 2)), first{std::vector<float>(size)},
        second{std::vector<float>(size)};
    const auto update = cpu::plan_update(
        rule, {weights.view(), gradients.view(), {}, {first.view(), states(rule) > 1 ? second.view() : DeviceView{}}},
        segments);
    const Range all{0, size};
    if (needs_whole_parameters(rule)) update->measure_parameters(all);
    update->run(all, 0.1f, 1);
    CHECK_FALSE(diverged(*update));
    gradients.values[at] = bad;
    if (needs_whole_parameters(rule)) update->measure_parameters(all);
    update->run(all, 0.1f, 2);
    CAPTURE(rule.index(), bad, at);
    CHECK(diverged(*update) == (at >= 32));  // before, there are metrics, which are not updated
  }
}

TEST_CASE("gradients are clipped by the global norm, bit-identically on any number of threads") {
  const auto segments = test::some_segments();
  const std::size_t size = segments.back().range.end;
  const std::vector<float> values = random_values(size, 2);
  const double norm = test::gradient_norm(values, segments);
  std::vector<std::vector<float>> clipped;
  for (const int threads : {1, 2, 3}) {
    cpu::CpuDevice device(threads);
    Arena weights(random_values(size, 1)), gradients(values), first{std::vector<float>(size)};
    const auto update = cpu::plan_update(Sgd{}, {weights.view(), gradients.view(), {}, {first.view(), {}}}, segments);
    CHECK(update->take_norms().steps == 0);
    update->clip(static_cast<float>(1.01 * norm));
    CHECK(gradients.values == values);
    update->clip(static_cast<float>(norm / 3));
    const auto expected = test::naive_clip(values, segments, norm / 3);
    CHECK(distance(gradients.values, {expected.begin(), expected.end()}) < 1e-6);
    clipped.push_back(gradients.values);
    const GradientNorms norms = update->take_norms();
    CHECK(norms.steps == 2);
    CHECK(norms.mean() == Approx(norm));
    CHECK(norms.largest == Approx(norm));
    CHECK(norms.last == Approx(norm));
    CHECK(update->take_norms().steps == 0);

    const std::vector<float> before = gradients.values;
    update->measure_norm();
    CHECK(gradients.values == before);
    CHECK(update->take_norms().last == Approx(norm / 3));

    for (const Range& slice : test::some_slices(false)) update->add_squares(slice);
    CHECK(update->take_squares() == Approx(norm * norm / 9));
    CHECK(update->take_squares() == 0);

    gradients.values[segments.back().range.begin] = std::numeric_limits<float>::infinity();
    update->clip(1);
    CHECK(std::isnan(gradients.values[segments.back().range.begin]));
  }
  CHECK(clipped[0] == clipped[1]);
  CHECK(clipped[0] == clipped[2]);
}

TEST_CASE("the global norm covers all segments") {
  GradientNorms norms;
  norms += {};
  CHECK(norms.steps == 0);
  norms += {3, 2, 1, 2};
  norms += {};
  norms += {0.5, 0.5, 0.5, 1};
  CHECK(norms.steps == 3);
  CHECK(norms.mean() == Approx(3.5 / 3));
  CHECK(norms.largest == 2);
  CHECK(norms.last == 0.5);
}

TEST_CASE("LARS norms are bit-identical on any number of threads") {
  const auto segments = test::some_segments();
  const std::size_t size = segments.back().range.end;
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    cpu::CpuDevice device(threads);
    Arena weights(random_values(size, 1)), gradients(random_values(size, 2)), first{std::vector<float>(size)};
    const auto update = cpu::plan_update(Lars{}, {weights.view(), gradients.view(), {}, {first.view(), {}}}, segments);
    update->measure_parameters({0, size});
    update->run({0, size}, 1, 1);
    results.push_back(weights.values);
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

}  // namespace annulus
