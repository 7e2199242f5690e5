#include "src/step/look_ahead.h"

#include <catch2/catch.hpp>

#include "kernels/device.h"
#include "kernels/update.h"

namespace annulus {

TEST_CASE("weights are predicted as momentum alone moves them", "[look_ahead]") {
  const auto device = make_device("cpu");
  const auto steps = GENERATE(as<std::size_t>(), 0, 1, 2, 3);
  LookAhead look_ahead(*device, 6, {{1, 3}, {4, 6}}, 0.5f, steps);
  std::vector<float> weights{0, 4, -8, 2, 16, 1};
  const std::vector<float> first_step{8, 8, -16, 24, 64, 0};
  look_ahead.remember(weights);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += first_step[i];
  const std::span<const float> predicted = look_ahead.predict(weights);
  for (std::size_t step = 1; step <= steps; ++step)
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] += first_step[i] / static_cast<float>(std::size_t{1} << step);
  for (const std::size_t i : {1u, 2u, 4u, 5u}) CHECK(predicted[i] == weights[i]);
}

TEST_CASE("the momentum of AdamW is that of its first moment", "[look_ahead]") {
  CHECK(momentum(UpdateRule(Sgd{.momentum = 0.75f})) == 0.75f);
  CHECK(momentum(UpdateRule(Lars{.momentum = 0.5f})) == 0.5f);
  CHECK(momentum(UpdateRule(AdamW{.beta1 = 0.25f, .beta2 = 0.5f})) == 0.25f);
}

}  // namespace annulus
