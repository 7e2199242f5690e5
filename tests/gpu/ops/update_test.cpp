// Updates on a GPU against their formulas in double precision, and the loss's scale.

#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/update/loss_scaling.h"
#include "kernels/divergence.h"
#include "tests/gpu/ops/gpu.h"
#include "tests/unit/update_rules.h"

namespace annulus {
namespace {

using test::Gpu;
using test::random_values;
using Values = std::vector<float>;

struct Arena {
  Arena(Gpu& on, const Values& values) : gpu(&on) { write(values); }
  void write(const Values& values) { test::upload(gpu->context, values.data(), values.size() * sizeof(float), memory); }
  Values read() const {
    Values values(memory.view().bytes / sizeof(float));
    test::download(gpu->context, memory.view(), values.data());
    return values;
  }
  DeviceView view() const { return memory.view(); }

  Gpu* gpu;
  Buffer memory;
};

Values copies(const Gpu& gpu, DeviceView view) {
  std::vector<std::byte> bytes(view.bytes);
  test::download(gpu.context, view, bytes.data());
  return test::from_type(bytes, gpu.context.type());
}

std::size_t sizes(const std::vector<Range>& slices) {
  return std::accumulate(slices.begin(), slices.end(), std::size_t{0},
                         [](std::size_t sum, const Range& slice) { return sum + slice.size(); });
}

// What these slices of an arena have, one after the other.
Values within(const Values& arena, const std::vector<Range>& slices) {
  Values values;
  for (const Range& slice : slices)
    values.insert(values.end(), arena.begin() + static_cast<long>(slice.begin),
                  arena.begin() + static_cast<long>(slice.end));
  return values;
}

double distance(const Values& ours, const std::vector<double>& expected) {
  double most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) most = std::max(most, std::abs(ours[i] - expected[i]));
  return most;
}

// A rule over arenas of random weights. `kept`: the slices of the states and of the average that exist; all if empty.
struct Trial {
  Trial(Gpu& gpu, const UpdateRule& rule, const std::vector<Range>& kept = {})
      : segments(test::some_segments()),
        size(segments.back().range.end),
        weights(gpu, initial()),
        gradients(gpu, random_values(size, 2)),
        first(gpu, Values(kept.empty() ? size : sizes(kept))),
        second(gpu, first.read()),
        average(gpu, first.read()) {
    UpdateArenas arenas{.weights = weights.view(),
                        .gradients = gradients.view(),
                        .copies = {},
                        .states = {first.view(), {}},
                        .average = average.view(),
                        .averaging = 0.9,
                        .kept = kept};
    if (states(rule) > 1) arenas.states[1] = second.view();
    if (gpu.context.type() != DataType::f32) {
      copy = cuda::allocate_device(size * size_of(gpu.context.type()));
      cuda::cast_params(weights.view(), copy.view(), gpu.context);
      arenas.copies = copy.view();
    }
    update = cuda::plan_update(rule, arenas, segments, gpu.context);
  }

  Values initial() const {
    Values values = random_values(size, 1);
    const Range zero = segments[test::kZeroSegment].range;
    std::fill(values.begin() + static_cast<long>(zero.begin), values.begin() + static_cast<long>(zero.end), 0.0f);
    return values;
  }

  std::vector<UpdateSegment> segments;
  std::size_t size;
  Arena weights, gradients, first, second, average;
  Buffer copy;
  std::unique_ptr<Update> update;
};

}  // namespace

TEST_CASE("on a GPU: updates match their formulas, in any slices, and write the 16-bit copies") {
  const UpdateRule rule = GENERATE(from_range(test::kRules));
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  Trial trial(gpu, rule);
  const Values before = trial.weights.read();
  test::NaiveArenas naive{
      {before.begin(), before.end()}, {}, std::vector<double>(trial.size), std::vector<double>(trial.size)};
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const Values gradients = random_values(trial.size, 10 + step);
    trial.gradients.write(gradients);
    naive.gradients.assign(gradients.begin(), gradients.end());
    const float rate = 0.1f / static_cast<float>(step);
    const bool whole = needs_whole_parameters(rule);
    for (const Range& slice : test::some_slices(whole)) {
      if (whole) trial.update->measure_parameters(slice);
      trial.update->run(slice, rate, step);
    }
    for (const UpdateSegment& segment : trial.segments)
      test::naive_update(rule, naive, segment, double{rate}, static_cast<double>(step));
  }
  CAPTURE(rule.index(), to_string(gpu.context.precision));
  const Values weights = trial.weights.read();
  CHECK(distance(weights, naive.weights) < 2e-6);
  CHECK(distance(trial.first.read(), naive.first) < 2e-6);
  CHECK(distance(trial.second.read(), naive.second) < 2e-6);
  if (trial.copy.view()) CHECK(copies(gpu, trial.copy.view()) == test::rounded(weights, gpu.context.type()));
}

TEST_CASE("on a GPU: an update that makes a weight or a statistic not finite is noticed") {
  const UpdateRule rule = GENERATE(from_range(test::kRules));
  Gpu gpu(Precision::fp32);
  Trial trial(gpu, rule);
  const Range all{0, trial.size};
  for (const std::size_t at : {std::size_t{16}, std::size_t{120}, std::size_t{20000}}) {  // a metric first
    Values gradients = random_values(trial.size, 2);
    gradients[at] = std::numeric_limits<float>::infinity();
    trial.gradients.write(gradients);
    if (needs_whole_parameters(rule)) trial.update->measure_parameters(all);
    trial.update->run(all, 0.1f, 1);
    trial.weights.read();  // waits for the update
    CAPTURE(rule.index(), at);
    CHECK(dynamic_cast<const Divergence&>(*trial.update).diverged() == (at >= 32));
  }
}

TEST_CASE("on a GPU: an update of kept slices has the bits of an update of all") {
  const UpdateRule rule = GENERATE(UpdateRule(Sgd{.momentum = 0.9f}), UpdateRule(AdamW{.weight_decay = 0.05f}));
  // Slices of two ranks, cut within parameters and blocks of threads.
  const std::vector<Range> even{{64, 1284}, {2000, 41004}}, odd{{0, 64}, {1284, 2000}, {41004, 77120}};
  Gpu gpu(Precision::bf16);
  Trial all(gpu, rule);
  REQUIRE(all.size == odd.back().end);
  const Values before = all.weights.read();
  for (std::uint64_t step = 1; step <= 2; ++step) all.update->run({0, all.size}, 0.1f, step);
  for (const auto& [kept, others] : {std::pair{even, odd}, std::pair{odd, even}}) {
    Trial part(gpu, rule, kept);
    for (std::uint64_t step = 1; step <= 2; ++step)
      for (const Range& slice : kept) part.update->run(slice, 0.1f, step);
    CHECK(within(part.weights.read(), kept) == within(all.weights.read(), kept));
    CHECK(within(part.weights.read(), others) == within(before, others));
    CHECK(within(copies(gpu, part.copy.view()), kept) == within(copies(gpu, all.copy.view()), kept));
    CHECK(part.first.read() == within(all.first.read(), kept));
    CHECK(part.second.read() == within(all.second.read(), kept));
    CHECK(part.average.read() == within(all.average.read(), kept));
  }
}

TEST_CASE("on a GPU: a skipped step changes nothing") {
  const UpdateRule rule = GENERATE(from_range(test::kRules));
  Gpu gpu(Precision::bf16);
  Buffer skip;
  const std::uint32_t yes = 1;
  gpu.context.skip = reinterpret_cast<const std::uint32_t*>(test::upload(gpu.context, &yes, sizeof yes, skip));
  Trial trial(gpu, rule);
  const Values before = trial.weights.read();
  trial.update->run({0, trial.size}, 0.1f, 1);
  CHECK(trial.weights.read() == before);
  CHECK(trial.first.read() == Values(trial.size));
  CHECK(trial.second.read() == Values(trial.size));
  CHECK(copies(gpu, trial.copy.view()) == test::rounded(before, DataType::bf16));
}

TEST_CASE("on a GPU: gradients are clipped by the global norm") {
  Gpu gpu(Precision::bf16);
  Buffer skip;
  std::uint32_t skipped = 0;
  gpu.context.skip = reinterpret_cast<const std::uint32_t*>(test::upload(gpu.context, &skipped, sizeof skipped, skip));
  Trial trial(gpu, Sgd{});
  const Values before = trial.gradients.read();
  const double norm = test::gradient_norm(before, trial.segments);
  trial.update->clip(static_cast<float>(1.01 * norm));
  CHECK(trial.gradients.read() == before);
  trial.update->clip(static_cast<float>(norm / 3));
  const Values expected = test::naive_clip(before, trial.segments, norm / 3), clipped = trial.gradients.read();
  CHECK(distance(clipped, {expected.begin(), expected.end()}) < 1e-6);

  const float infinity = std::numeric_limits<float>::infinity();
  trial.gradients.write(before);
  trial.update->measure_norm();
  CHECK(trial.gradients.read() == before);
  for (const Range& slice : test::some_slices(false)) trial.update->add_squares(slice);
  CHECK(trial.update->take_squares() == Approx(norm * norm).epsilon(1e-5));
  CHECK(trial.update->take_squares() == 0);
  Values unfit = before;
  unfit[trial.segments.back().range.begin + 5] = infinity;
  trial.gradients.write(unfit);
  skipped = 1;
  test::upload(gpu.context, &skipped, sizeof skipped, skip);
  trial.update->clip(1);  // does not count: the step is skipped
  const GradientNorms norms = trial.update->take_norms();
  CHECK(norms.steps == 3);
  CHECK(norms.mean() == Approx(norm).epsilon(1e-5));
  CHECK(norms.largest == Approx(norm).epsilon(1e-5));
  CHECK(norms.last == Approx(norm).epsilon(1e-5));
  CHECK(trial.update->take_norms().steps == 0);

  // Outside of a step: the norm of non-finite gradients is non-finite, and zeros beside them stay zero.
  skipped = 0;
  test::upload(gpu.context, &skipped, sizeof skipped, skip);
  trial.gradients.write(unfit);
  trial.update->measure_norm();
  CHECK(trial.gradients.read() == unfit);
  CHECK(trial.update->take_norms().last == double{infinity});
}

TEST_CASE("on a GPU: one arena moves towards another, and two are swapped") {
  Gpu gpu(Precision::bf16);
  for (const std::size_t size : {std::size_t{16}, std::size_t{32000}}) {
    gpu.context.skip = nullptr;
    const Values a = random_values(size, 1), b = random_values(size, 2);
    Arena from(gpu, a), to(gpu, Values(size)), other(gpu, b);
    cuda::move_towards(from.view(), to.view(), 1, gpu.context);
    CHECK(to.read() == a);
    cuda::move_towards(other.view(), to.view(), 0.25f, gpu.context);
    std::vector<double> expected(size);
    for (std::size_t i = 0; i < size; ++i) expected[i] = 0.75 * a[i] + 0.25 * b[i];
    CHECK(distance(to.read(), expected) < 1e-6);
    cuda::swap(from.view(), other.view(), gpu.context);
    CHECK(from.read() == b);
    CHECK(other.read() == a);

    Buffer skip;
    const std::uint32_t yes = 1;
    gpu.context.skip = reinterpret_cast<const std::uint32_t*>(test::upload(gpu.context, &yes, sizeof yes, skip));
    cuda::move_towards(from.view(), other.view(), 1, gpu.context);
    CHECK(other.read() == a);
  }
}

TEST_CASE("on a GPU: slices and slots that are not whole blocks are refused") {
  Gpu gpu(Precision::fp32);
  Trial trial(gpu, Sgd{});
  CHECK_THROWS_WITH(trial.update->run({0, 18}, 0.1f, 1), Catch::Contains("blocks of 4"));
  CHECK_THROWS_WITH(
      cuda::plan_update(Sgd{}, {trial.weights.view(), trial.gradients.view(), {}, {trial.first.view(), {}}},
                        {{{0, 24}, Role::weight}}, gpu.context),
      Catch::Contains("blocks of 16"));
  CHECK_THROWS_WITH(Trial(gpu, Sgd{}, {{0, 64}, {70, 128}}), Catch::Contains("blocks of 4"));
}

TEST_CASE("on a GPU: flat sums and widened values") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const DataType type = gpu.context.type();
  for (const std::size_t size : {std::size_t{8}, std::size_t{32000}}) {
    const Values a = test::rounded(random_values(size, 1), type), b = test::rounded(random_values(size, 2), type);
    const auto a_bytes = test::to_type(a, type), b_bytes = test::to_type(b, type);
    Buffer from, to, wide;
    test::upload(gpu.context, a_bytes.data(), a_bytes.size(), from);
    test::upload(gpu.context, b_bytes.data(), b_bytes.size(), to);
    cuda::add(from.view(), to.view(), type, gpu.context);
    Values sum(size);
    for (std::size_t i = 0; i < size; ++i) sum[i] = a[i] + b[i];
    CHECK(copies(gpu, to.view()) == test::rounded(sum, type));

    wide = cuda::allocate_device(size * sizeof(float));
    cuda::widen(from.view().address, wide.view(), gpu.context.unscale, gpu.context);
    Values widened(size), expected = a;
    test::download(gpu.context, wide.view(), widened.data());
    for (float& value : expected) value /= gpu.scale();
    CHECK(widened == expected);
  }
}

TEST_CASE("on a GPU: the loss scale is halved after an overflow, and doubled after many steps without") {
  Gpu gpu(Precision::fp16);
  cuda::DeviceLossScaling scaling(gpu.context);
  const auto skipped = [&] {
    std::uint32_t word = 0;
    test::download(gpu.context, {reinterpret_cast<std::byte*>(const_cast<std::uint32_t*>(scaling.skip())), sizeof word},
                   &word);
    return word != 0;
  };
  const auto number = [&](const float* at) {
    float value = 0;
    test::download(gpu.context, {reinterpret_cast<std::byte*>(const_cast<float*>(at)), sizeof value}, &value);
    return value;
  };
  CHECK(number(scaling.scale()) == 65536);
  CHECK(number(scaling.unscale()) == 1 / 65536.0f);

  const float infinity = std::numeric_limits<float>::infinity();
  Arena good(gpu, random_values(6000, 1));
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t place : {std::size_t{0}, std::size_t{4567}, std::size_t{6000}, std::size_t{6002}}) {
      Values values = random_values(6003, 2);
      values[place] = bad;
      Arena gradients(gpu, values);
      scaling.set_state({.scale = 1024, .good_steps = 7});
      scaling.judge(good.view());
      CHECK(!skipped());
      scaling.judge(gradients.view());
      scaling.judge(good.view());
      CHECK(skipped());
      scaling.conclude();
      CHECK(!skipped());
      CHECK(scaling.state().scale == 512);
      CHECK(scaling.state().good_steps == 0);
      CHECK(number(scaling.unscale()) == 1 / 512.0f);
    }

  scaling.set_state({.scale = 1024, .good_steps = 1998});
  for (const auto& [scale, good_steps] : {std::pair{1024.0f, 1999u}, {2048.0f, 0u}, {2048.0f, 1u}}) {
    scaling.judge(good.view());
    scaling.conclude();
    CHECK(scaling.state().scale == scale);
    CHECK(scaling.state().good_steps == good_steps);
  }

  // The other ranks' gradients count as well.
  for (const auto& [others, own] : {std::pair{0.0f, false}, {2.0f, false}, {0.0f, true}, {2.0f, true}}) {
    Values values = random_values(6000, 3);
    if (own) values[5] = infinity;
    Arena gradients(gpu, values);
    scaling.set_state({.scale = 1024});
    scaling.judge(gradients.view());
    scaling.agree([&](DeviceView ranks) {
      const float found = number(reinterpret_cast<const float*>(ranks.address)), all = found + others;
      CHECK(found == (own ? 1 : 0));
      cuda::check(cudaMemcpyAsync(ranks.address, &all, sizeof all, cudaMemcpyHostToDevice, gpu.context.lane.get()));
      cuda::check(cudaStreamSynchronize(gpu.context.lane.get()));
    });
    CHECK(skipped() == (own || others > 0));
    scaling.conclude();
    CHECK(scaling.state().scale == (own || others > 0 ? 512 : 1024));
  }
}

}  // namespace annulus
