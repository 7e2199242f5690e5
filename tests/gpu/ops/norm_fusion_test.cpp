// Batch norms whose passes the convolutions beside them do, against the same network without fusions.

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/neighbour_fusion.h"
#include "models/rewrites/freeze.h"
#include "models/rewrites/fusion.h"
#include "models/rewrites/recompute.h"
#include "models/rewrites/synchronize.h"
#include "tests/gpu/ops/fusion_chooser.h"
#include "tests/gpu/ops/training_run.h"
#include "tests/test_file.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using test::TrainingRun;
using Names = std::vector<std::string>;

// A network of images, built layer by layer. The widths are no multiples of 8.
struct Builder {
  Value conv(const std::string& name, Value x, Convolution convolution) {
    convolution.bias = false;
    return graph.add(name, convolution, {x});
  }
  Value norm(const std::string& name, Value x) { return graph.add(name, BatchNorm{}, {x}); }
  Value relu(const std::string& name, Value x) { return graph.add(name, Relu{}, {x}); }
  // A convolution, its batch norm and a ReLU.
  Value layer(const std::string& name, Value x, const Convolution& convolution) {
    return relu(name + ".relu", norm(name + ".bn", conv(name + ".conv", x, convolution)));
  }
  // 1x1, 3x3, 1x1, around a shortcut.
  Value block(const std::string& name, Value x, std::size_t channels, std::size_t stride, bool project) {
    const Value around =
        project ? norm(name + ".around.bn",
                       conv(name + ".around.conv", x, {.channels = 2 * channels, .kernel = 1, .stride = stride}))
                : x;
    Value y = layer(name + ".1", x, {.channels = channels, .kernel = 1});
    y = layer(name + ".2", y, {.channels = channels, .kernel = 3, .stride = stride, .padding = 1});
    y = norm(name + ".3.bn", conv(name + ".3.conv", y, {.channels = 2 * channels, .kernel = 1}));
    return relu(name + ".relu", graph.add(name + ".add", Add{}, {y, around}));
  }
  // Two 3x3, around a shortcut.
  Value basic_block(const std::string& name, Value x, std::size_t channels, std::size_t stride) {
    const Value around =
        stride > 1 ? norm(name + ".around.bn",
                          conv(name + ".around.conv", x, {.channels = channels, .kernel = 1, .stride = stride}))
                   : x;
    Value y = layer(name + ".1", x, {.channels = channels, .kernel = 3, .stride = stride, .padding = 1});
    y = norm(name + ".2.bn", conv(name + ".2.conv", y, {.channels = channels, .kernel = 3, .padding = 1}));
    return relu(name + ".relu", graph.add(name + ".add", Add{}, {y, around}));
  }
  Graph done(Value x) {
    x = graph.add("pool", AdaptiveAveragePool{1}, {x});
    graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Dense{3}, {x}), Graph::kLabels});
    return graph;
  }

  Graph graph{ImageShape{9, 8, 3}};
  Value input = graph.add("input", ImageInput{{0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}}, {Graph::kImages});
};

constexpr std::size_t kFloat = sizeof(float);
const Convolution kThree{.channels = 12, .kernel = 3, .padding = 1};

Graph chain() {
  Builder b;
  Value x = b.layer("a", b.input, kThree);
  x = b.layer("b", x, {.channels = 20, .kernel = 3, .stride = 2, .padding = 1});
  return b.done(b.layer("c", x, {.channels = 12, .kernel = 1}));
}

Graph residual() {
  Builder b;
  Value x = b.layer("stem", b.input, kThree);
  x = b.block("a", x, 12, 1, true);
  x = b.block("b", x, 12, 1, false);
  return b.done(b.block("c", x, 20, 2, true));
}

Graph basic() {
  Builder b;
  Value x = b.layer("stem", b.input, kThree);
  x = b.basic_block("a", x, 12, 1);
  x = b.basic_block("b", x, 12, 1);
  return b.done(b.basic_block("c", x, 27, 2));
}

// Either convolution that reads the first block's output could do its end.
Graph projected() {
  Builder b;
  Value x = b.layer("stem", b.input, kThree);
  x = b.block("a", x, 12, 1, true);
  return b.done(b.block("b", x, 10, 1, true));
}

Graph output_read_twice() {
  Builder b;
  const Value x = b.layer("a", b.input, kThree);
  return b.done(b.graph.add("add", Add{}, {b.layer("b", x, kThree), x}));
}

Graph without_relu() {
  Builder b;
  const Value x = b.norm("a.bn", b.conv("a.conv", b.input, kThree));
  return b.done(b.layer("b", x, kThree));
}

Graph groups() {
  Builder b;
  Convolution grouped = kThree;
  grouped.groups = 3;
  return b.done(b.layer("b", b.layer("a", b.input, kThree), grouped));
}

Graph bias() {
  Builder b;
  const Value x = b.layer("a", b.input, kThree);
  return b.done(b.relu("b.relu", b.norm("b.bn", b.graph.add("b.conv", kThree, {x}))));
}

// Whether our 1x1 convolutions were built for the GPU; the 3x3 ones then were, too.
bool has_own_products() {
  return cuda::has_own_product({cuda::Forward{}, Precision::fp16, 1, 64, 1, 1, 64, 1, 1, 0});
}

// A tuning file with which every fusion that the library has a plan for is chosen: without it, passes take ages.
class TuningFile {
 public:
  explicit TuningFile(const Graph& graph) {
    TrainingRun(graph, request());  // measures, if there is a library
    if (!measured()) return;
    auto json = nlohmann::json::parse(test::read_text(path_));
    for (auto& platform : json["platforms"])
      for (auto& [name, entry] : platform.items())
        if (name.starts_with("copy")) entry["microseconds"] = 1e9;
    test::write_text(path_, json.dump());
  }

  DeviceRequest request() const { return {.precision = Precision::fp16, .tuning = {path_, false}}; }
  bool measured() const { return std::filesystem::exists(path_); }

 private:
  test::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "tuning.json";
};

}  // namespace

TEST_CASE("on a GPU: convolutions do the passes of the batch norms beside them") {
  const struct {
    const char* name;
    Graph graph;
    Names left_out;
  } cases[] = {
      {"chain", chain(), {"a.bn", "b.bn"}},
      {"synchronized", synchronize_batch_norms(chain()), {"a.bn", "b.bn"}},
      {"statistics that do not change", freeze(chain(), {"b.bn.running_*"}), {"b.bn"}},
      {"residual blocks", residual(), {"a.1.bn", "a.2.bn", "b.1.bn", "b.2.bn", "c.1.bn", "c.2.bn"}},
      {"residual blocks, recomputed",
       recompute_blocks(residual()),
       {"a.1.bn", "a.2.bn", "b.1.bn", "b.2.bn", "c.1.bn", "c.2.bn"}},
      {"a projection without a stride", projected(), {"a.1.bn", "a.2.bn", "b.1.bn", "b.2.bn"}},
      {"output read twice", output_read_twice(), {}},
      {"without a ReLU", without_relu(), {}},
      {"groups", groups(), {}},
      {"bias", bias(), {}},
      {"frozen below", freeze(chain(), {"a"}), {"b.bn"}},
  };
  for (const auto& [name, graph, expected] : cases) {
    CAPTURE(name);
    const TuningFile tuning(graph);
    TrainingRun ours(graph, tuning.request()), plain(graph, {.precision = Precision::fp16});
    if (!tuning.measured()) CHECK(ours.left_out() == expected);
    CHECK(plain.left_out().empty());
    const double tolerance = test::tolerance(Precision::fp16);
    CHECK(ours.step(Mode::inference) == Approx(plain.step(Mode::inference)).epsilon(tolerance));
    // Where a ReLU's input is rounded to the other side of 0, the gradients of such a small batch change by a few
    // percent.
    test::check_close_training(ours, plain, tolerance, 0x1p-4);
  }
}

TEST_CASE("on a GPU: the reader of a block's end that has a plan for it runs first") {
  const Graph graph = residual();
  const TuningFile tuning(graph);
  TrainingRun run(graph, tuning.request());
  Network& network = run.model.network(Mode::training, TrainingRun::kBatch);
  Names names;
  for (const std::size_t node : network.activation_plan().order())
    names.push_back(run.model.graph().nodes()[node].name);
  const auto end = std::ranges::find(names, "b.3.bn");
  REQUIRE(names.end() - end > 4);
  CHECK(Names(end, end + 5) == Names{"b.3.bn", "c.1.conv", "c.around.conv", "c.around.bn", "c.1.bn"});

  // Gradients are final when they are reported, also in recorded steps.
  Network::Stops stops;
  for (const Parameter& p : run.model.parameters().updated()) stops.backward.push_back((p.offset + p.bytes) / kFloat);
  network.stop_at(stops);
  run.load(network);
  for (int step = 0; step < 3; ++step) {
    run.device->zero(run.model.parameters().gradients());
    network.forward();
    std::vector<std::vector<std::byte>> reported;
    network.backward(1.0f / TrainingRun::kBatch, [&](std::size_t gradients, const std::optional<Mark>&) {
      reported.push_back(run.gradients());
      reported.back().resize(gradients * kFloat);
    });
    CHECK(reported.size() > 20);
    const std::vector<std::byte> all = run.gradients();
    for (const auto& bytes : reported) CHECK(std::ranges::equal(bytes, std::span(all).first(bytes.size())));
  }
}

TEST_CASE("on a GPU: a convolution does the passes of the batch norm before it that are chosen") {
  const bool normalized = GENERATE(false, true), gradient_sums = GENERATE(false, true), relu = GENERATE(false, true);
  const bool own = GENERATE(false, true);
  if (own && !has_own_products()) return;
  CAPTURE(normalized, gradient_sums, relu, own);
  test::Gpu gpu(Precision::fp16);
  gpu.context.convolutions = std::make_unique<test::FusionChooser>(
      cuda::ConvolutionPasses{{normalized ? cuda::Forward::normalized : cuda::Forward::stored, true},
                              gradient_sums ? cuda::BackwardData::summed : cuda::BackwardData::written,
                              cuda::BackwardWeights::rounded,
                              own});
  const auto plan = [&](const Operation& operation, const TensorSpec& input) {
    return cuda::plan_any(operation, {input}, Mode::training, gpu.context);
  };
  const auto before = plan(BatchNorm{.relu = relu}, cuda::value_spec({2, 16, 5, 5}, DataType::f16));
  const auto convolution = plan(Convolution{.channels = 8, .kernel = 1, .bias = false}, before->output());
  const auto after = plan(BatchNorm{}, convolution->output());
  dynamic_cast<NeighbourFusion&>(*convolution).fuse_neighbours({.previous = before.get(), .next = after.get()});
  using enum FusedPasses::Previous;
  const bool does_part = gradient_sums || (own && normalized);
  CHECK(convolution->info().fused.previous == (!relu ? none : normalized && !own ? output : does_part ? part : none));
}

TEST_CASE("on a GPU: the first convolution of a block does passes of the batch norm at the end of the one before") {
  const bool chosen = GENERATE(false, true), shared = GENERATE(false, true), relu = GENERATE(false, true);
  CAPTURE(chosen, shared, relu);
  test::Gpu gpu(Precision::fp16);
  gpu.context.convolutions = std::make_unique<test::FusionChooser>(
      cuda::ConvolutionPasses{{chosen ? cuda::Forward::block_end : cuda::Forward::normalized},
                              chosen ? cuda::BackwardData::summed_elsewhere : cuda::BackwardData::written});
  const TensorSpec spec = cuda::value_spec({3, 24, 9, 8}, DataType::f16);  // for which cuDNN has plans on an H200
  const auto end = cuda::plan_any(BatchNorm{.add = true, .relu = relu}, {spec, spec}, Mode::training, gpu.context);
  const auto begin = cuda::plan_any(Convolution{.channels = 16, .kernel = 1, .bias = false}, {end->output()},
                                    Mode::training, gpu.context);
  dynamic_cast<NeighbourFusion&>(*begin).fuse_neighbours({.previous = end.get(), .shares_input = shared});
  const bool does = chosen && shared && relu;
  CHECK(begin->info().fused.previous == (does ? FusedPasses::Previous::shared_output : FusedPasses::Previous::none));
  // The output's gradient is the addend's, too, so it must stay in its memory.
  CHECK(end->info().input(0).gradient_may_overwrite == !does);
}

TEST_CASE("on a GPU: a convolution without a plan for a chosen pass does nothing for the batch norm before it") {
  const cuda::ConvolutionPasses all{
      {cuda::Forward::normalized}, cuda::BackwardData::summed, cuda::BackwardWeights::of_normalized};
  const auto refused = GENERATE_COPY(
      values<cuda::ConvolutionPass>({all.forward, all.backward_data, all.backward_weights, cuda::BackwardData::added}));
  test::Gpu gpu(Precision::fp16);
  gpu.context.convolutions = std::make_unique<test::FusionChooser>(all, refused);
  const TensorSpec spec = cuda::value_spec({2, 16, 5, 5}, DataType::f16);
  const auto norm = cuda::plan_any(BatchNorm{.relu = true}, {spec}, Mode::training, gpu.context);
  const auto convolution = cuda::plan_any(Convolution{.channels = 8, .kernel = 1, .bias = false}, {norm->output()},
                                          Mode::training, gpu.context);
  dynamic_cast<NeighbourFusion&>(*convolution).fuse_neighbours({.previous = norm.get()});
  using enum FusedPasses::Previous;
  CHECK(convolution->info().fused.previous ==
        (refused == cuda::ConvolutionPass(cuda::BackwardData::added) ? output : none));
}

TEST_CASE("on a GPU: every output is stored in other precisions than fp16, or if results must repeat") {
  const test::TemporaryFolder folder;
  const auto [precision, deterministic] =
      GENERATE(table<Precision, bool>({{Precision::fp32, false}, {Precision::bf16, false}, {Precision::fp16, true}}));
  TrainingRun run(chain(), {.precision = precision, .tuning = {folder / "tuning.json", deterministic}});
  CHECK(run.left_out().empty());
}

TEST_CASE("on a GPU: our own products do the passes of the batch norms beside them") {
  if (!has_own_products()) return;
  const struct {
    const char* name;
    Graph graph;
  } cases[] = {{"chain", chain()},
               {"synchronized", synchronize_batch_norms(chain())},
               {"statistics that do not change", freeze(chain(), {"b.bn.running_*"})},
               {"residual blocks", residual()},
               {"residual blocks, recomputed", recompute_blocks(residual())},
               {"a projection without a stride", projected()},
               {"blocks of 3x3 convolutions", basic()},
               {"frozen below", freeze(chain(), {"a"})}};
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    for (const auto& [name, graph] : cases) {
      CAPTURE(name, to_string(precision));
      const test::TemporaryFolder folder;
      TrainingRun ours(graph, {.precision = precision, .tuning = {folder / "tuning.json"}});
      TrainingRun plain(graph, {.precision = precision});
      const double tolerance = test::tolerance(precision);
      CHECK(ours.step(Mode::inference) == Approx(plain.step(Mode::inference)).epsilon(tolerance));
      test::check_close_training(ours, plain, tolerance, precision == Precision::fp16 ? 0x1p-4 : 0x1p-2);
    }
}

}  // namespace annulus
