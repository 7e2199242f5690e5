#include "kernels/base/labels.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "models/network/model.h"
#include "models/zoo/layers.h"
#include "src/data/loader.h"
#include "src/io/atomic_file.h"
#include "src/io/hdf5.h"
#include "src/step/class_counts.h"
#include "src/step/evaluate.h"
#include "tests/unit/error_text.h"
#include "tests/unit/score_of.h"
#include "tests/unit/small_network.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/test_device.h"

// Labels that are several classes or real numbers.
namespace annulus {
namespace {

using Catch::Contains;
using Names = std::vector<std::string>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A data file of 2x1x1 images, all of whose pixels are the sample's number. T: uint8_t or float.
template <class T>
std::filesystem::path write(const std::filesystem::path& file, const Shape& shape, const std::vector<T>& labels,
                            const std::string& attribute, const Names& names) {
  hdf5::NewFile made(file);
  hdf5::Group root = made.root();
  root.set_strings(attribute, names);
  root.set_floats("mean", std::vector{0.5f});
  root.set_floats("deviation", std::vector{0.25f});
  hdf5::Group train = root.create_group("train");
  train.write("labels", shape, std::span<const T>(labels));
  std::vector<std::uint8_t> pixels;
  for (std::size_t sample = 0; sample < shape[0]; ++sample)
    pixels.insert(pixels.end(), 2, static_cast<std::uint8_t>(sample));
  train.write("images", {shape[0], 2, 1, 1}, std::span<const std::uint8_t>(pixels));
  write_atomically(file, made.image());
  return file;
}

std::vector<float> targets(const Dataset& dataset, std::size_t sample) {
  std::vector<float> found(dataset.info().targets(), -1);
  dataset.read_targets(sample, found);
  return found;
}

}  // namespace

TEST_CASE("labels of several classes and of values are read") {
  const test::TemporaryFolder folder;
  const std::vector<std::uint8_t> classes{1, 0, 1, 0, 0, 0};
  const Dataset several({write(folder / "several.h5", {2, 3}, classes, "classes", {"a", "b", "c"})}, "train");
  CHECK(several.info().labels == LabelKind::several_classes);
  CHECK(several.info().targets() == 3);
  CHECK(several.label(0) == 0);
  CHECK(targets(several, 0) == std::vector<float>{1, 0, 1});
  CHECK(targets(several, 1) == std::vector<float>{0, 0, 0});

  const Dataset values({write<float>(folder / "values.h5", {3, 2}, {1, -2, 3.5f, 4, 5, 6}, "values", {"x", "y"})},
                       "train");
  CHECK(values.info().labels == LabelKind::values);
  CHECK(values.info().classes == Names{"x", "y"});
  CHECK(targets(values, 1) == std::vector<float>{3.5f, 4});
  const Dataset single({write<float>(folder / "single.h5", {3}, {1, -2, 3.5f}, "values", {"x"})}, "train");
  CHECK(targets(single, 2) == std::vector<float>{3.5f});

  std::vector<std::uint8_t> pixels(4);
  std::vector<std::int32_t> labels(2);
  std::vector<float> copied(4);
  const std::vector<std::size_t> samples{2, 0};
  REQUIRE(values.copy(samples, pixels, labels, copied));
  CHECK(copied == std::vector<float>{5, 6, 1, -2});
}

TEST_CASE("labels that are no such labels are refused") {
  const test::TemporaryFolder folder;
  const auto error = [&](const auto& labels, const Shape& shape, const std::string& attribute, const Names& names) {
    write(folder / "bad.h5", shape, labels, attribute, names);
    return test::error_of([&] { Dataset({folder / "bad.h5"}, "train"); });
  };
  const std::vector<std::uint8_t> bytes{1, 0, 1, 0};
  const std::vector<float> floats{1, 2, 3, 4};
  CHECK_THAT(
      error(bytes, {2, 2}, "classes", {"a", "b", "c"}),
      Contains("bad.h5: /train/labels: shape 2x2, but there are 2 images and 3 names in the attribute 'classes'"));
  CHECK_THAT(error(floats, {2, 2}, "values", {"a"}), Contains("shape 2x2") && Contains("1 names"));
  CHECK_THAT(error(floats, {4}, "values", {}), Contains("attribute 'values': empty; it must name every value"));
  CHECK_THAT(error(floats, {4}, "classes", {"a"}), Contains("'values'"));
  CHECK_THAT(error(bytes, {4}, "values", {"a"}), Contains("save the labels as float32"));
  CHECK_THAT(error(std::vector<std::int64_t>{1, 0, 1, 0}, {2, 2}, "classes", {"a", "b"}), Contains("must be uint8"));

  write<float>(folder / "a.h5", {2}, {1, 2}, "values", {"a"});
  write<std::uint8_t>(folder / "b.h5", {2}, {0, 0}, "classes", {"a"});
  CHECK_THAT(test::error_of([&] {
               Dataset({folder / "a.h5", folder / "b.h5"}, "train");
             }),
             Contains("different kinds of labels"));

  // A bad label is only that sample's.
  const Dataset values({write<float>(folder / "nan.h5", {2, 2}, {1, 2, 3, kNan}, "values", {"x", "y"})}, "train");
  CHECK(targets(values, 0) == std::vector<float>{1, 2});
  CHECK_THAT(test::error_of([&] { targets(values, 1); }),
             Contains("nan.h5: train sample 1: value 'y' of its label is"));
  const Dataset several({write<std::uint8_t>(folder / "two.h5", {1, 2}, {1, 2}, "classes", {"x", "y"})}, "train");
  CHECK_THAT(test::error_of([&] { targets(several, 0); }),
             Contains("2 for class 'y' in its label, which must be 0 or 1"));
}

TEST_CASE("batches have the targets of their samples, without those of bad ones") {
  const test::TemporaryFolder folder;
  std::vector<float> labels;
  for (std::size_t i = 0; i < 40; ++i) labels.push_back(static_cast<float>(i) / 2);
  labels[2 * 7] = kNan;
  const Dataset dataset({write(folder / "data.h5", {20, 2}, labels, "values", {"x", "y"})}, "train");
  for (const Purpose purpose : {Purpose::training, Purpose::evaluation}) {
    DataOptions options;
    options.on_bad_sample = "skip";
    options.workers = 2;
    const InputPlan plan = plan_input(options, dataset.info(), purpose, 1);
    std::size_t images = 0;
    for (int rank = 0; rank < 2; ++rank) {
      Loader loader(dataset, plan, {.global_batch = 6, .rank = rank, .ranks = 2, .start = {}, .end_epoch = 1});
      for (bool last = false; !last;) {
        const Batch& batch = loader.next();
        last = batch.step.last_of_epoch;
        images += batch.size();
        REQUIRE(batch.targets.size() == 2 * batch.size());
        for (std::size_t i = 0; i < batch.size(); ++i) {
          const auto sample = static_cast<float>(batch.images[2 * i]);
          CHECK(sample != 7);
          CHECK((batch.targets[2 * i] == sample && batch.targets[2 * i + 1] == sample + 0.5f));
          const Labels one = batch.labels_of({i, i + 1});
          CHECK((one.classes.size() == 1 && one.mixed.empty() && one.targets.size() == 2));
          CHECK(one.targets[0] == sample);
        }
      }
    }
    CHECK(images == (purpose == Purpose::training ? 20 : 19));
  }
}

TEST_CASE("the gradients of networks with targets are those of finite differences") {
  const auto device = test::make_device(2);
  const LabelKind kind = GENERATE(LabelKind::several_classes, LabelKind::values);
  CAPTURE(description(kind));
  constexpr std::size_t kBatch = 6, kWidth = 3;
  Task task = neutral_task({4, 4, 1}, kWidth);
  task.labels = kind;
  task.loss = parse_loss("auto", kind);
  Graph graph({4, 4, 1});
  const Value x = dense_relu(graph, "hidden", image_input(graph, task), Dense{5});
  graph = with_loss(std::move(graph), task, graph.add("fc", Dense{kWidth}, {x}));
  test::PlainNetwork plain(*device, graph, kBatch);
  plain.parameters.initialize(3);
  const test::Samples samples(graph, kBatch, 2, 5);
  std::vector<float> targets;
  for (const std::int32_t label : test::random_labels(kBatch * kWidth, 2, 6))
    targets.push_back(kind == LabelKind::values ? 3 * static_cast<float>(label) - 1 : static_cast<float>(label));
  const auto loss = [&] {
    plain.network.load(samples.images, {.targets = targets});
    plain.network.forward();
    return plain.network.loss();
  };
  const LossSums sums = loss();
  CHECK((sums.loss > 0 && sums.among_largest == 0));
  plain.network.backward(1.0f / kBatch);
  for (const Parameter& p : plain.parameters.updated()) {
    if (p.role == Role::metric) continue;
    auto weights = test::read(*device, p, plain.parameters.weight(p));
    const auto gradient = test::read(*device, p, plain.parameters.gradient(p));
    for (std::size_t i = 0; i < weights.size(); i += 7) {
      const auto loss_at = [&](float step) {
        auto moved = weights;
        moved[i] += step;
        device->write(moved, p.spec, plain.parameters.weight(p));
        return loss().loss / kBatch;
      };
      constexpr float kStep = 1e-2f;
      const double measured = (loss_at(kStep) - loss_at(-kStep)) / (2 * static_cast<double>(kStep));
      device->write(weights, p.spec, plain.parameters.weight(p));
      CAPTURE(p.name, i);
      CHECK(measured == Approx(gradient[i]).epsilon(0.02).margin(2e-3));
    }
  }
}

TEST_CASE("losses by the labels") {
  CHECK(parse_loss("auto", LabelKind::one_class) == Loss::softmax);
  CHECK(parse_loss("binary", LabelKind::one_class) == Loss::binary);
  CHECK(parse_loss("auto", LabelKind::several_classes) == Loss::binary);
  CHECK(parse_loss("auto", LabelKind::values) == Loss::mse);
  CHECK_THROWS_WITH(parse_loss("softmax", LabelKind::values),
                    "--loss softmax is not for these labels, real numbers: use mse");
  CHECK_THROWS_WITH(parse_loss("mse", LabelKind::one_class),
                    Contains("one class for each image: use softmax or binary"));
}

// The numbers of sklearn.metrics.f1_score(average="macro", zero_division=nan).
TEST_CASE("precision, recall and F1 of images of several classes") {
  ClassCounts counts(4);
  counts.add(std::vector<float>{2, -1, -1, -9, -3, 1, 0.5f, -9}, std::vector<float>{1, 0, 1, 0, 0, 1, 0, 0});
  counts.add(std::vector<float>{1, 3, -1, -9, 1, 0, -2, -9}, std::vector<float>{1, 1, 0, 0, 0, 0, 0, 0});
  const ClassResult first = counts.result(0), second = counts.result(1), third = counts.result(2);
  CHECK((first.images == 2 && first.predicted == 3 && first.correct == 2));
  CHECK(first.f1().value() == Approx(0.8));
  CHECK(second.f1().value() == 1);
  CHECK(third.f1().value() == 0);
  CHECK_FALSE(counts.result(3).f1());
  CHECK(counts.mean_of(&ClassResult::f1) == Approx(0.6));
  CHECK(counts.mean_of(&ClassResult::recall) == Approx(2.0 / 3));
  CHECK(ClassCounts(2).mean_of(&ClassResult::f1) == 0);
}

TEST_CASE("evaluations in words") {
  const Score classes = test::score_of(120, {{Measure::accuracy, 90}, {Measure::top5, 114}, {Measure::loss, 0.25}});
  CHECK(headline(classes) == "accuracy 75.00 %");
  CHECK(details(classes) == "90 of 120 images, top-5 95.00 %, loss 0.2500");
  CHECK(to_string(Evaluation{"test", classes}) == "test loss 0.2500  test accuracy 75.00 %  top-5 95.00 %");
  const Score several = test::score_of(120, {{Measure::accuracy, 90}, {Measure::loss, 0.25}, {Measure::f1, 0.5}});
  CHECK(headline(several) == "F1 50.00 %");
  CHECK(details(several) == "120 images, accuracy 75.00 %, loss 0.2500");
  const Score values = test::score_of(120, {{Measure::loss, 0.25}, {Measure::mae, 1.5}});
  CHECK(to_string(Evaluation{"test", values}) == "test loss 0.2500  test MAE 1.5000");
  CHECK(is_better(Measure::mae, 1, 2));
  CHECK(is_better(Measure::f1, 2, 1));
  CHECK(!is_better(Measure::mae, classes, values));
  DatasetInfo data;
  data.classes = {"a", "b"};
  CHECK(measures_of(data) == std::vector{Measure::accuracy, Measure::loss});
  data.labels = LabelKind::values;
  CHECK(measures_of(data) == std::vector{Measure::mae, Measure::loss});
}

}  // namespace annulus
