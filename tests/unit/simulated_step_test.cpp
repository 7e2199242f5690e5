#include "src/scaling/simulated_step.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/error_text.h"

namespace annulus {

namespace {

constexpr std::size_t kLayerBytes = 64 * 1024;

// Three layers in forward's order, each of kLayerBytes; forward takes 1, 2, 3 s, backward 10, 20, 30.
StepProfile three_layers() {
  return {.model = "three",
          .batch = 8,
          .ranks = 1,
          .input_seconds = 0.5,
          .optimizer_seconds = 0.3,
          .layers = {{"a", 1, 10, {kLayerBytes}}, {"b", 2, 20, {kLayerBytes}}, {"c", 3, 30, {kLayerBytes}}}};
}

AllReduceModel constant(double seconds) {
  return {[seconds](std::size_t) { return seconds; }, "constant"};
}

// Layer c has the table, of a vocabulary of 4 tokens; 8 windows of 100 tokens, so every step has all 4.
StepProfile with_embedding() {
  StepProfile profile = three_layers();
  profile.length = 100;
  profile.embedding = {.vocabulary = 4, .row_bytes = kLayerBytes / 4, .own_seconds = 4, .row_seconds = 2};
  return profile;
}

// A bucket for each layer.
SimulatedStep simulate(double all_reduce_seconds, double deferred = 0, double slow_down = 1) {
  return simulate_step(three_layers(), constant(all_reduce_seconds), {.bytes = kLayerBytes, .deferred = deferred},
                       {.slow_down = slow_down});
}

}  // namespace

TEST_CASE("without communication a step takes the sum of its parts") {
  const SimulatedStep step = simulate(0);
  CHECK(step.buckets == 3);
  CHECK(step.input == 0.5);
  CHECK(step.compute == Approx(66));
  CHECK(step.optimizer == Approx(0.3));
  CHECK(step.exposed == 0);
  CHECK(step.step == Approx(66.8));
}

TEST_CASE("all-reduces of all but the lowest layer overlap with backward") {
  const SimulatedStep step = simulate(5);
  CHECK(step.communication == Approx(15));
  CHECK(step.exposed == Approx(5 - 0.2));  // the last all-reduce, while the other buckets are updated
  CHECK(step.step == Approx(66.8 + 4.8));
}

TEST_CASE("all-reduces that take longer than backward run back to back") {
  // c's begins at 36.5, b's and a's after it; the last ends at 36.5 + 3 * 100, and its bucket is updated.
  const SimulatedStep step = simulate(100);
  CHECK(step.step == Approx(36.5 + 300 + 0.1));
  CHECK(step.exposed == Approx(step.step - 66.8));
}

TEST_CASE("ranks take longer beside others, and wait for the slowest") {
  AllReduceModel sum = constant(0);
  const Interference interference{.contention = 2, .waiting = 0.3};
  const auto step_of = [&](std::size_t ranks) {
    sum.ranks = ranks;
    return simulate_step(three_layers(), sum, {.bytes = kLayerBytes}, interference);
  };
  CHECK(step_of(1).step == Approx(66.8));
  CHECK(step_of(1).waiting == 0);
  const SimulatedStep step = step_of(3);
  CHECK(step.input == 1);
  CHECK(step.compute == Approx(132));
  CHECK(step.waiting == Approx(132 * 0.3 * (1 / 2.0 + 1 / 3.0)));
  CHECK(step.optimizer == Approx(0.6));
  CHECK(step.step == Approx(1 + 132 + 33 + 0.6));
  // The slowest rank's computing hides more of an all-reduce: each but the last one, for any delay.
  sum = constant(20);
  sum.ranks = 3;
  CHECK(simulate_step(three_layers(), sum, {.bytes = kLayerBytes}).exposed == Approx(10 + 20 - 0.2));
  CHECK(simulate_step(three_layers(), sum, {.bytes = kLayerBytes}, interference).exposed == Approx(20 - 0.4));
}

TEST_CASE("one bucket has no overlap") {
  const SimulatedStep step = simulate_step(three_layers(), constant(7), {.bytes = 3 * kLayerBytes});
  CHECK(step.buckets == 1);
  CHECK(step.exposed == Approx(7));
  CHECK(step.step == Approx(66.8 + 7));
}

TEST_CASE("deferred all-reduces overlap with the next forward, up to their layer") {
  // b is deferred: c is the first one, and with a the share would exceed 0.4. So c, a, b are sent. a's all-reduce is
  // exposed except for c's update; b's continues during a's update, the input and a's forward.
  const SimulatedStep step = simulate(2.5, 0.4);
  CHECK(step.exposed == Approx((2.5 - 0.1) + (2.5 - 0.1 - 0.5 - 1)));
  CHECK(step.step == Approx(66.8 + step.exposed));
  CHECK(simulate(0.5, 0.4).exposed == Approx(0.5 - 0.1));
}

TEST_CASE("computation slows down only during all-reduces") {
  // c's all-reduce of 5 s overlaps with b's backward: 5 s of it do the work of 2.5, so 2.5 s are lost; likewise b's.
  CHECK(simulate(5, 0, 2).compute == Approx(66 + 5));
  // Longer than backward: all but c's backward takes twice as long, and a's all-reduce has no overlap.
  CHECK(simulate(1000, 0, 2).compute == Approx(66 + 30));
  CHECK(simulate(0, 0, 2).compute == Approx(66));
}

TEST_CASE("layers without gradients send nothing; gradients computed in no time are sent") {
  StepProfile profile = three_layers();
  profile.layers.insert(profile.layers.begin() + 1, {"relu", 4, 40, {}});
  profile.layers.push_back({"loss", 0, 0, {64, 64}});
  const SimulatedStep step = simulate_step(profile, constant(5), {.bytes = kLayerBytes});
  CHECK(step.buckets == 4);
  CHECK(step.communication == Approx(20));
  CHECK(step.compute == Approx(66 + 44));
  CHECK(step.exposed == Approx(5 - 0.3 * (2 * kLayerBytes + 128) / (3 * kLayerBytes + 128.0)));
}

TEST_CASE("the number of different tokens is that of random ones") {
  const EmbeddingProfile two{.vocabulary = 2, .row_bytes = 4};
  CHECK(two.different_tokens(1) == Approx(1));
  CHECK(two.different_tokens(2) == Approx(1.5));
  CHECK(two.different_tokens(3) == Approx(1.75));
  CHECK(EmbeddingProfile{.vocabulary = 1, .row_bytes = 4}.different_tokens(7) == 1);
  CHECK(EmbeddingProfile{.vocabulary = 50257, .row_bytes = 4}.different_tokens(1) == Approx(1));
  CHECK(EmbeddingProfile{.vocabulary = 50257, .row_bytes = 4}.different_tokens(50257) ==
        Approx(50257 * (1 - std::exp(-1))).epsilon(1e-4));
}

TEST_CASE("of a shared embedding, forward hides the tokens; the rows follow the other layers") {
  // c's all-reduce and b's are hidden by backward; a's begins at 66.5 and ends at 71.5. This rank's rows are ready at
  // 70.5 and sent until 76.5. In between b and a are updated, at last the table, in c.
  const SimulatedStep step = simulate_step(with_embedding(), constant(5), {.bytes = kLayerBytes});
  CHECK(step.embedding == Approx(4 + 4 * 2));
  CHECK(step.communication == Approx(5 * 5));
  CHECK(step.exposed == Approx((71.5 - 70.6) + (76.5 - 71.6)));
  CHECK(step.optimizer == Approx(0.3));
  CHECK(step.step == Approx(76.5 + 4 * 2 + 0.1));
}

TEST_CASE("gradients that are final before their layer's backward ends are sent early") {
  // c is two buckets, final at 6.5 + 12 and 6.5 + 24; its backward ends at 36.5.
  StepProfile profile = three_layers();
  profile.layers[2].early = {{kLayerBytes / 2, 12}, {kLayerBytes, 24}};
  const BucketOptions halves{.bytes = kLayerBytes / 2};
  const auto step_of = [&](double all_reduce, const Interference& interference = {}, std::size_t ranks = 1) {
    return simulate_step(profile, {[=](std::size_t) { return all_reduce; }, "constant", ranks}, halves, interference);
  };
  CHECK(step_of(0).step == Approx(66.8));
  CHECK(step_of(0).buckets == 6);
  CHECK(step_of(100).step == Approx(6.5 + 12 + 600 + 0.05));
  CHECK(step_of(100, {.contention = 2}, 2).step == Approx(2 * (6.5 + 12) + 600 + 0.1));
  // All-reduces run from 18.5 to 23.5 and from 33 to 38, within c's backward, which each prolongs by 2.5; those of b's
  // two buckets prolong a's.
  CHECK(step_of(5, {.slow_down = 2}).compute == Approx(66 + 2 * 2.5 + 2 * 2.5));
  // Half of c is reported, which is half a bucket; nothing can be sent.
  profile.layers[2].early.pop_back();
  CHECK(simulate_step(profile, constant(100), {.bytes = kLayerBytes}).step == Approx(36.5 + 300 + 0.1));
}

TEST_CASE("with a shared embedding, layers below the head are deferred, and sent after the rows") {
  StepProfile profile = with_embedding();
  profile.embedding->own_seconds = profile.embedding->row_seconds = 0;
  // c is sent from 36.5 on, a from 66.5, the rows from 86.5, b from 106.5 to 126.5. In between a is updated, and c; the
  // next step begins at 106.6, and needs b's parameters after 1.5 s.
  const SimulatedStep step = simulate_step(profile, constant(20), {.bytes = kLayerBytes, .deferred = 0.34});
  CHECK(step.exposed == Approx((86.5 - 66.5) + (106.5 - 86.6) + (126.5 - 108.1)));
  CHECK(step.communication == Approx(5 * 20));
  CHECK(step.step == Approx(66.8 + step.exposed));

  // Only the tokens are sent before c, and c is not deferred.
  std::vector<std::size_t> sizes;
  const auto recorded = [&](std::size_t bytes) {
    sizes.push_back(bytes);
    return 0.0;
  };
  profile.layers[0].gradient_bytes = {1024};
  profile.layers[1].gradient_bytes = {2048};
  simulate_step(profile, {recorded, "recorded"}, {.bytes = 2048, .deferred = 0.04});
  sizes.erase(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2));  // of the first step
  REQUIRE(sizes.size() == 1 + 32 + 3);
  CHECK(sizes.front() == 4 * sizeof(float));
  CHECK(std::vector(sizes.end() - 3, sizes.end()) == std::vector<std::size_t>{1024, kLayerBytes, 2048});
}

TEST_CASE("the exchange of a shared embedding has the tokens and the rows of all ranks") {
  std::vector<std::size_t> sizes;
  const auto recorded = [&](std::size_t bytes) {
    sizes.push_back(bytes);
    return 0.0;
  };
  constexpr std::size_t kTableBytes = 1000 * 1024;
  StepProfile profile = with_embedding();
  profile.layers[2].gradient_bytes = {kTableBytes};
  profile.embedding->vocabulary = 1000;  // 800 tokens have 1000 (1 - 0.999^800) = 550.87 different ones
  profile.embedding->row_bytes = 1024;
  const SimulatedStep one = simulate_step(profile, {recorded, "recorded"}, {.bytes = kTableBytes});
  CHECK(sizes == std::vector<std::size_t>{4000, kTableBytes, 2 * kLayerBytes, 551 * 1024,  // the first step
                                          4000, kTableBytes, 2 * kLayerBytes, 551 * 1024});
  CHECK(one.embedding == Approx(4 + 551 * 2));
  sizes.clear();  // 4 ranks: 1000 (1 - 0.999^3200) = 959.31
  const SimulatedStep four = simulate_step(profile, {recorded, "recorded", 4}, {.bytes = kTableBytes});
  CHECK(sizes.back() == 959 * 1024);
  CHECK(four.embedding == Approx(4 + 959 * 2));
}

TEST_CASE("a profile whose embedding has no gradient is refused") {
  StepProfile profile = with_embedding();
  profile.embedding->vocabulary = 5;
  CHECK(test::error_of([&] { simulate_step(profile, constant(5), {}); }) ==
        "the profile of three has no gradient of 5 rows of 16384 bytes, as its embedding");
}

TEST_CASE("a profile without gradients has no buckets") {
  StepProfile profile = three_layers();
  for (LayerProfile& layer : profile.layers) layer.gradient_bytes.clear();
  const SimulatedStep step = simulate_step(profile, constant(5), {});
  CHECK(step.buckets == 0);
  CHECK(step.step == Approx(66.5));
}

TEST_CASE("all-reduce time follows the bucket size, and simulating 4096 ranks is fast") {
  const LinkModel link{20e-6, 1.25e9};
  const AllReduceModel sum = model_all_reduce("message-ring", {.network = link}, 4096);
  const SimulatedStep step = simulate_step(three_layers(), sum, {.bytes = kLayerBytes});
  CHECK(step.communication ==
        Approx(3 * ring_seconds({&link, 1}, 4096, kLayerBytes, message_ring_options(false), WireType::fp32)));
}

}  // namespace annulus
