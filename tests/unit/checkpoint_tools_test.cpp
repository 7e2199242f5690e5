#include "src/apply/checkpoint_tools.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;

Checkpoint example_run() {
  Checkpoint checkpoint;
  checkpoint.model = "lenet";
  checkpoint.optimizer = "adamw";
  checkpoint.run.step = 10;
  checkpoint.parameters = {{"weight", {2, 2}, {3, 0, 4, 0}, {{1, 1, 1, 1}, {2, 2, 2, 2}}, {1, 2, 3, 4}},
                           {"mean", {1}, {5}, {}, {6}}};
  return checkpoint;
}

// Each difference: its remark, or its numbers.
std::vector<std::string> texts(const Checkpoint& a, const Checkpoint& b) {
  std::vector<std::string> all;
  for (const TensorDifference& one : differences(a, b))
    all.push_back(one.name + ": " +
                  (one.remark.empty() ? fmt::format("{} {}", one.largest, one.relative) : one.remark));
  return all;
}

LoadedCheckpoint stored(const std::string& name, Checkpoint checkpoint) {
  return {name, std::move(checkpoint)};
}

}  // namespace

TEST_CASE("identical checkpoints compare equal", "[checkpoint_tools]") {
  Checkpoint one = example_run();
  one.parameters[0].values[0] = std::numeric_limits<float>::quiet_NaN();
  Checkpoint later = one;
  later.run.step = 20;  // which is no tensor
  CHECK(differences(one, later).empty());
}

TEST_CASE("differing tensors are listed with their distance", "[checkpoint_tools]") {
  using Texts = std::vector<std::string>;
  Checkpoint other = example_run();
  other.parameters[0].values = {3, 1, 4, -2};  // of a norm of 5, sqrt(5) apart
  other.parameters[0].states[1][3] = 2.5;      // of a norm of 4
  other.parameters[1].average = {6};
  CHECK(differences(example_run(), other).size() == 2);
  CHECK(differences(example_run(), other)[0].name == "parameters/weight");
  CHECK(differences(example_run(), other)[0].largest == 2);
  CHECK(differences(example_run(), other)[0].relative == Approx(std::sqrt(5.0) / 5));
  CHECK(texts(example_run(), other)[1] == "second_moment/weight: 0.5 0.125");

  other = example_run();
  other.parameters[0].values[1] = -0.0f;
  CHECK(texts(example_run(), other) == Texts{"parameters/weight: 0 0"});
  other.parameters[0].values[1] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(differences(example_run(), other).at(0).largest));

  other = example_run();
  other.parameters[0].states.pop_back();
  other.parameters[1] = {"bias", {1}, {5}, {}, {6}};
  CHECK(texts(example_run(), other) ==
        Texts{"second_moment/weight: only in the first", "mean: only in the first", "bias: only in the second"});
  CHECK(texts(other, example_run()) ==
        Texts{"second_moment/weight: only in the second", "bias: only in the first", "mean: only in the second"});

  other = example_run();
  other.parameters[0].shape = {4};
  CHECK(texts(example_run(), other) == Texts{"weight: shapes 2x2 and 4"});
}

TEST_CASE("averaging checkpoints averages their weights and EMAs", "[checkpoint_tools]") {
  Checkpoint other = example_run();
  other.run.step = 30;
  other.parameters[0].values = {1, 2, 3, 4};
  other.parameters[0].average = {3, 3, 3, 3};
  other.parameters[1].values = {7};
  std::swap(other.parameters[0], other.parameters[1]);  // parameters are matched by name
  Checkpoint third = other;
  const Checkpoint mean = average({stored("a", example_run()), stored("b", other), stored("c", third)});
  CHECK(mean.model == "lenet");
  CHECK(mean.run.step == 30);
  REQUIRE(mean.parameters.size() == 2);
  CHECK(mean.parameters[0].values == std::vector<float>{5.0f / 3, 4.0f / 3, 10.0f / 3, 8.0f / 3});
  CHECK(mean.parameters[0].average == std::vector<float>{7.0f / 3, 8.0f / 3, 3, 10.0f / 3});
  CHECK(mean.parameters[1].values == std::vector<float>{19.0f / 3});
  CHECK(mean.parameters[0].states.empty());
  CHECK_FALSE(mean.run.score);

  for (NamedTensor& tensor : third.parameters) tensor.average.clear();
  CHECK_FALSE(average({stored("a", example_run()), stored("c", third)}).averages());
  other = example_run();
  other.data = {.height = 4, .classes = {"cat", "dog"}, .mean = {0.5f}, .stddev = {0.25f}};
  const DatasetInfo data = average({stored("a", other), stored("b", example_run())}).data;  // prediction accepts it
  CHECK(data.classes == other.data.classes);
  CHECK(data.mean == other.data.mean);
}

TEST_CASE("checkpoints of different models cannot be averaged", "[checkpoint_tools]") {
  const auto error_with = [](Checkpoint other) {
    return test::error_of([&] { average({stored("one.h5", example_run()), stored("other.h5", other)}); });
  };
  Checkpoint other = example_run();
  other.model = "mlp";
  CHECK_THAT(error_with(other), Contains("one.h5 and other.h5") && Contains("of models lenet and mlp"));
  other = example_run();
  other.loss = "binary";
  CHECK_THAT(error_with(other), Contains("made with --loss softmax and binary"));
  other.data.labels = LabelKind::several_classes;
  CHECK_THAT(error_with(other), Contains("one class for each image and any number of classes"));
  CHECK(average({stored("a", other), stored("b", other)}).loss == "binary");
  other = example_run();
  other.parameters.pop_back();
  CHECK_THAT(error_with(other), Contains("only one has a parameter mean"));
  other.parameters = example_run().parameters;
  other.parameters.push_back({"new", {}, {1}, {}});
  CHECK_THAT(error_with(other), Contains("only one has a parameter new"));
  other = example_run();
  other.parameters[0].shape = {4};
  CHECK_THAT(error_with(other), Contains("weight has two shapes"));
}

TEST_CASE("averaging refuses to overwrite a file", "[checkpoint_tools]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "a.h5", example_run());
  average_checkpoints(folder / "mean.h5", {folder / "a.h5", folder / "a.h5"}, false);
  CHECK(read_checkpoint(folder / "mean.h5").parameters[0].values == example_run().parameters[0].values);
  CHECK_THAT(test::error_of([&] {
               average_checkpoints(folder / "mean.h5", {folder / "a.h5", folder / "a.h5"}, false);
             }),
             Contains("mean.h5: exists already"));
}

}  // namespace annulus
