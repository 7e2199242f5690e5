// A max pool that does the passes of the batch norm before it, against the same network with a copy in between.

#include <catch2/catch.hpp>

#include "models/rewrites/freeze.h"
#include "models/rewrites/recompute.h"
#include "models/rewrites/synchronize.h"
#include "tests/gpu/ops/training_run.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using test::TrainingRun;
using Names = std::vector<std::string>;

constexpr std::size_t kChannels = 12;  // no multiple of 8

struct Stem {
  ImageShape image{9, 8, 3};
  MaxPool pool{3, 2, 1};
  bool relu = true;
  bool read_twice = false;
};

// The stem of a ResNet, and a layer after it. `copied`: so that nothing is fused across the copy.
Graph network(const Stem& stem, bool copied = false) {
  Graph graph(stem.image);
  const Convolution three{.channels = kChannels, .kernel = 3, .padding = 1, .bias = false};
  const Value input = graph.add("input", ImageInput{{0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}}, {Graph::kImages});
  const Value norm = graph.add("stem.bn", BatchNorm{}, {graph.add("stem.conv", three, {input})});
  Value x = norm;
  if (copied) x = graph.add("copy", Reshape{{Reshape::kInferred, kChannels, stem.image.height, stem.image.width}}, {x});
  if (stem.relu) x = graph.add("stem.relu", Relu{}, {x});
  x = graph.add("stem.pool", stem.pool, {x});
  if (stem.read_twice) x = graph.add("add", Add{}, {x, graph.add("other", MaxPool{3, 2, 1}, {norm})});
  x = graph.add("next.bn", BatchNorm{}, {graph.add("next.conv", three, {x})});
  x = graph.add("mean", AdaptiveAveragePool{1}, {graph.add("next.relu", Relu{}, {x})});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Dense{3}, {x}), Graph::kLabels});
  return graph;
}

// The loss has the same bits, because the largest value is also the largest when all are rounded; in fp32 the gradients
// have, too. In 16 bits the pool alone rounds its gradient, and may find other pixels equal.
void check_same_training(const Graph& fused, const Graph& copied, Precision precision) {
  TrainingRun ours(fused, {.precision = precision}), plain(copied, {.precision = precision});
  CHECK(ours.left_out() == Names{"stem.bn"});
  CHECK(ours.left_out(Mode::inference) == Names{"stem.bn"});
  CHECK(plain.left_out().empty());
  CHECK(ours.step(Mode::inference) == plain.step(Mode::inference));
  const bool exact = precision == Precision::fp32;
  test::check_close_training(ours, plain, 0, exact ? 0 : 0x1p-4);
  if (exact) CHECK(ours.gradients() == plain.gradients());
}

}  // namespace

TEST_CASE("on a GPU: a max pool does the passes of the batch norm before it") {
  const Stem stems[] = {
      {},
      {.relu = false},
      {.image = {8, 7, 3}},
      {.pool = {3, 2}},
      {.pool = {2, 2}},
      {.pool = {2, 3}},
      {.pool = {{3, 2}, {2, 1}, {0, 1, 1, 0}}},
      {.image = {40, 33, 3}},
  };
  for (const Stem& stem : stems)
    for (const Precision precision : test::kPrecisions) {
      CAPTURE(stem.image.height, stem.image.width, stem.relu, to_string(precision));
      CAPTURE(stem.pool.kernel.height, stem.pool.kernel.width, stem.pool.stride.height, stem.pool.padding.top);
      check_same_training(network(stem), network(stem, true), precision);
    }
}

TEST_CASE("on a GPU: a max pool does the passes of batch norms with other statistics, or below all trained layers") {
  const Precision precision = GENERATE(Precision::fp32, Precision::fp16);
  const auto check = [&](const auto& changed) {
    check_same_training(changed(network({})), changed(network({}, true)), precision);
  };
  check([](const Graph& graph) { return synchronize_batch_norms(graph); });
  check([](const Graph& graph) { return freeze(graph, {"stem.bn.running_*"}); });
  check([](const Graph& graph) { return freeze(graph, {"stem.conv"}); });
  check([](const Graph& graph) { return freeze(graph, {"stem"}); });
}

TEST_CASE(
    "on a GPU: the convolution before a batch norm computes its statistics, and the max pool after it the output") {
  const test::TemporaryFolder folder;
  const Graph graph = network({});
  TrainingRun ours(graph, {.precision = Precision::fp16, .tuning = {folder / "tuning.json", false}});
  TrainingRun plain(network({}, true), {.precision = Precision::fp16});
  CHECK(ours.left_out() == Names{"stem.bn"});
  const double tolerance = test::tolerance(Precision::fp16);
  test::check_close_training(ours, plain, tolerance, 0x1p-4);
}

TEST_CASE("on a GPU: batch norms whose output is needed, or whose pixels are in many windows, are not fused") {
  for (const Stem& stem : {Stem{.pool = {3, 1, 1}}, Stem{.pool = {5, 2, 2}}, Stem{.read_twice = true}}) {
    TrainingRun run(network(stem), {.precision = Precision::bf16});
    CHECK(run.left_out().empty());
  }
}

}  // namespace annulus
