#include "src/data/views.h"

#include <catch2/catch.hpp>

#include "models/zoo/zoo.h"
#include "src/data/augment.h"
#include "src/step/infer.h"
#include "src/step/infer_views.h"
#include "tests/unit/error_text.h"
#include "tests/unit/random_values.h"

namespace annulus {
namespace {

constexpr std::size_t kImages = 7, kBytes = 28 * 28;

struct Trial {
  Trial() {
    model.parameters().initialize(3);
    input.image = {28, 28};
    input.channels = 1;
    const auto pixels = test::random_pixels(kImages * kBytes, 1);
    batch.images.assign(pixels.begin(), pixels.end());
    batch.labels = test::random_labels(kImages, 10, 2);
  }

  // Of the images as they are in the batch.
  std::vector<float> logits() {
    std::vector<float> all;
    infer(model, batch, input, activity, [&](const Network& network, const Range&) {
      sums = network.loss();
      all = read_logits(model, network);
    });
    return all;
  }

  std::unique_ptr<Device> device = make_device("cpu", 2);
  Model model{*device, make_model("lenet", zoo_entry("lenet").task()), Mode::inference, kImages};
  InputPlan input;
  Batch batch{};
  Activity activity;
  LossSums sums;
};

}  // namespace

TEST_CASE("the views of an image and their weights", "[views]") {
  for (const auto& [name, count] : {std::pair{"one", 1u}, {"mirror", 2u}, {"mirror-shift", 6u}}) {
    const std::vector<View> views = parse_views(name);
    CHECK(views.size() == count);
    float sum = 0;
    for (const View& view : views) sum += view.weight;
    CHECK(sum == 1);
  }
  CHECK(test::error_of([] { parse_views("both"); }) ==
        "--views both: unknown; choose one of: one, mirror, mirror-shift");
  std::vector<std::uint8_t> pixels{1, 2, 3, 4, 5, 6, 7, 8, 9}, scratch;
  show({1, true, 1}, pixels, {3, 3}, 1, scratch);
  CHECK(pixels == std::vector<std::uint8_t>{5, 6, 5, 2, 3, 2, 5, 6, 5});
}

TEST_CASE("an evaluation's logits are the weighted means over the views", "[views]") {
  Trial trial;
  trial.input.views = parse_views("mirror-shift");
  const std::vector<float> found = infer_views(trial.model, trial.batch, trial.input, trial.activity);
  const auto original = trial.batch.images;
  std::vector<double> expected(kImages * 10);
  std::vector<std::uint8_t> scratch;
  for (const bool mirrored : {false, true})
    for (const std::ptrdiff_t shift : {0, 1, -1}) {
      trial.batch.images = original;
      for (std::size_t i = 0; i < kImages; ++i) {
        const auto own = std::span(trial.batch.images).subspan(i * kBytes, kBytes);
        if (mirrored) flip_left_to_right(own, {28, 28}, 1);
        shift_with_reflection(shift, shift, own, {28, 28}, 1, scratch);
      }
      const std::vector<float> logits = trial.logits();
      for (std::size_t i = 0; i < logits.size(); ++i)
        expected[i] += static_cast<double>(logits[i]) * (shift == 0 ? 0.25 : 0.125);
    }
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).margin(1e-6));
}

TEST_CASE("the losses and hits of logits are the network's", "[views]") {
  Trial trial;
  const std::vector<float> logits = trial.logits();
  const LossSums found = class_sums(logits, trial.batch.labels);
  CHECK(found.loss == Approx(trial.sums.loss).epsilon(1e-6));
  CHECK(found.measure == trial.sums.measure);
  CHECK(found.among_largest == trial.sums.among_largest);
  const std::vector<float> equal(10, 0.5f);
  CHECK(class_sums(equal, std::vector{0}).measure == 1);
  CHECK(class_sums(equal, std::vector{1}).measure == 0);
  CHECK(class_sums(equal, std::vector{4}).among_largest == 1);
  CHECK(class_sums(equal, std::vector{5}).among_largest == 0);
}

}  // namespace annulus
