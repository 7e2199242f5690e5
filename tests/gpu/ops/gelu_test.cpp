// GELU fused with the products beside it, against the same network in which it is apart from them.

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/neighbour_fusion.h"
#include "models/graph/graph_rewrite.h"
#include "models/rewrites/freeze.h"
#include "models/rewrites/recompute.h"
#include "models/zoo/zoo.h"
#include "tests/gpu/ops/training_run.h"

namespace annulus {
namespace {

using Names = std::vector<std::string>;
using test::TrainingRun;
using enum Activation::Function;

constexpr std::size_t kLength = 20, kVocabulary = 50;
constexpr Activation kGelu{gelu_tanh};

Graph gpt() {
  return make_model("gpt-tiny", token_task({kLength, kVocabulary}));
}

// A network of images, built layer by layer. The widths are no multiples of 8.
struct Builder {
  Value dense(const std::string& name, Value x, std::size_t units = 20) {
    return graph.add(name, Dense{.units = units}, {x});
  }
  Value gelu(const std::string& name, Value x, const Activation& operation = kGelu) {
    return graph.add(name, operation, {x});
  }
  Graph done(Value x) {
    graph.add("loss", SoftmaxCrossEntropy{}, {dense("last", x, 3), Graph::kLabels});
    return graph;
  }

  Graph graph{ImageShape{4, 4, 3}};
  Value input =
      dense("first", graph.add("input", ImageInput{{0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}}, {Graph::kImages}));
};

Graph two_layers(const Activation& operation = kGelu) {
  Builder b;
  const Value x = b.gelu("act1", b.dense("hidden1", b.input, 36), operation);
  return b.done(b.gelu("act2", b.dense("hidden2", x), operation));
}

Graph input_read_twice() {
  Builder b;
  const Value x = b.dense("hidden", b.input);
  return b.done(b.dense("next", b.graph.add("add", Add{}, {b.gelu("act", x), x})));
}

// The gradient of GELU's output has two sources, so it must be in memory.
Graph output_read_twice() {
  Builder b;
  const Value x = b.gelu("act", b.dense("hidden", b.input));
  return b.done(b.graph.add("add", Add{}, {b.dense("next", x), x}));
}

Graph dropout_after() {
  Builder b;
  const Value x = b.gelu("act", b.dense("hidden", b.input));
  return b.done(b.graph.add("dropout", Dropout{0.25f}, {x, Graph::kSampleKeys}));
}

Graph norm_before() {
  Builder b;
  return b.done(b.gelu("act", b.graph.add("norm", LayerNorm{.axis = 1}, {b.dense("hidden", b.input)})));
}

Graph relu_before() {
  Builder b;
  return b.done(b.gelu("act", b.graph.add("relu", Relu{}, {b.dense("hidden", b.input)})));
}

// Backward needs the input of the last GELU of each block, but not its output.
Graph residual(bool recomputed) {
  Builder b;
  Value x = b.input;
  for (const std::string block : {"a", "b", "c"}) {
    const Value y = b.gelu(block + ".act1", b.dense(block + ".1", x, 52));
    x = b.graph.add(block + ".add", Add{}, {b.gelu(block + ".act2", b.dense(block + ".2", y)), x});
  }
  const Graph graph = b.done(x);
  return recomputed ? recompute_blocks(graph) : graph;
}

// Separates every GELU from its neighbours by functions that return their input.
Graph apart(const Graph& graph) {
  GraphRewrite rewrite(graph);
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    const auto* activation = std::get_if<Activation>(&node.operation);
    const bool is_gelu = activation != nullptr && activation->function == gelu_tanh;
    const auto same = [&](const std::string& name, Value x) {
      return rewrite.graph.add(Node{.name = node.name + name, .operation = Activation{linear, 1, 0}, .inputs = {x}});
    };
    Node moved = node;
    if (is_gelu) moved.inputs = {same(".before", rewrite.renamed[node.inputs[0]])};
    Value& value = rewrite.renamed[Graph::output(i)];
    value = is_gelu ? same(".after", rewrite.graph.add(std::move(moved))) : rewrite.add(std::move(moved));
  }
  return rewrite.graph;
}

// The activations without a forward pass of their own, and those without a backward pass.
struct Fused {
  Names forward, backward;
  bool operator==(const Fused&) const = default;
};

Fused fused(const Graph& graph, Precision precision) {
  TrainingRun run(graph, {.precision = precision});
  TraceLane lane(1000);
  lane.record(true);
  run.model.record_to(&lane);
  run.step();
  const auto& spans = lane.spans();
  const auto is = [](std::string_view name) { return [name](const auto& span) { return span.name == name; }; };
  const auto middle = std::ranges::find_if(spans, is("forward"));
  const auto required = run.model.graph().required_gradients();
  Fused found;
  for (std::size_t i = 0; i < run.model.graph().nodes().size(); ++i) {
    const Node& node = run.model.graph().nodes()[i];
    const std::string& name = node.name;
    if (!std::holds_alternative<Activation>(node.operation)) continue;  // layer norms compute additions before them
    if (std::none_of(spans.begin(), middle, is(name))) found.forward.push_back(name);
    if (required[Graph::output(i)] && std::none_of(middle, spans.end(), is(name))) found.backward.push_back(name);
  }
  return found;
}

// Always, except on GPUs on which it would be slow.
bool library_fuses(Precision precision) {
  return cuda::make_matmul_planner()->plan({.precision = precision,
                                            .rows = 8,
                                            .columns = 8,
                                            .inner = 8,
                                            .function = cuda::MatmulProblem::Function::gelu}) != nullptr;
}

void check_against_apart(const Graph& graph, Precision precision) {
  TrainingRun ours(graph, {.precision = precision}), expected(apart(graph), {.precision = precision});
  const double loss = expected.step(Mode::inference), tolerance = test::tolerance(precision);
  CHECK(ours.step(Mode::inference) == Approx(loss).epsilon(tolerance));
  test::check_close_training(ours, expected, tolerance, 4 * tolerance);
}

}  // namespace

TEST_CASE("on a GPU: GELU is computed with the products beside it if it can be") {
  const struct {
    const char* name;
    Graph graph;
    Fused fused;
  } cases[] = {
      {"GPT", gpt(), {{"h.0.mlp.act", "h.1.mlp.act"}, {"h.0.mlp.act", "h.1.mlp.act"}}},
      {"GPT, recomputed", recompute_blocks(gpt()), {{"h.0.mlp.act", "h.1.mlp.act"}, {"h.0.mlp.act", "h.1.mlp.act"}}},
      {"two layers", two_layers(), {{"act1", "act2"}, {"act1", "act2"}}},
      {"another GELU", two_layers({gelu}), {{}, {}}},
      {"input read twice", input_read_twice(), {{}, {}}},
      {"output read twice", output_read_twice(), {{"act"}, {}}},
      {"dropout after it", dropout_after(), {{"act"}, {}}},
      {"layer norm before it", norm_before(), {{}, {"act"}}},
      {"ReLU before it", relu_before(), {{}, {"act"}}},
      {"residual blocks",
       residual(false),
       {{"a.act1", "a.act2", "b.act1", "b.act2", "c.act1", "c.act2"}, {"a.act1", "b.act1", "c.act1"}}},
      {"residual blocks, recomputed",
       residual(true),
       {{"a.act1", "a.act2", "b.act1", "b.act2", "c.act1", "c.act2"}, {"a.act1", "b.act1", "c.act1"}}},
      {"frozen below", freeze(two_layers(), {"first", "hidden1"}), {{"act1", "act2"}, {"act2"}}},
      {"frozen between", freeze(two_layers(), {"hidden1", "hidden2"}), {{"act1", "act2"}, {"act1", "act2"}}},
  };
  for (const auto& [name, graph, expected] : cases) {
    CAPTURE(name);
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      CHECK(fused(graph, precision) == (library_fuses(precision) ? expected : Fused{}));
      check_against_apart(graph, precision);
    }
    CHECK(fused(graph, Precision::fp32) == Fused{});
  }
  CHECK(fused(apart(gpt()), Precision::bf16) == Fused{});
}

TEST_CASE("on a GPU: recomputation with fused GELUs is bit-identical") {
  for (const auto& [kept, recomputed] :
       {std::pair{residual(false), residual(true)}, {gpt(), recompute_blocks(gpt())}}) {
    TrainingRun ours(recomputed, {.precision = Precision::bf16}), expected(kept, {.precision = Precision::bf16});
    CHECK(ours.step() == expected.step());
    CHECK(ours.gradients() == expected.gradients());
  }
}

// As cuBLASLt on GPUs on which its GELU is slow.
TEST_CASE("on a GPU: without products that have a GELU, nothing is fused") {
  struct WithoutGelu : cuda::MatmulPlanner {
    std::unique_ptr<cuda::Matmul> plan(const cuda::MatmulProblem& problem) override {
      return problem.has_gelu() ? nullptr : all->plan(problem);
    }
    std::unique_ptr<cuda::MatmulPlanner> all = cuda::make_matmul_planner();
  };
  test::Gpu gpu(Precision::bf16);
  gpu.context.matmuls = std::make_unique<WithoutGelu>();
  const auto op =
      cuda::plan_any(Dense{.units = 8}, {cuda::value_spec({3, 8}, DataType::bf16)}, Mode::training, gpu.context);
  const Operation gelu = kGelu;
  dynamic_cast<NeighbourFusion&>(*op).fuse_neighbours({.next_forward = &gelu, .previous_backward = &gelu});
  CHECK_FALSE(op->info().fused.next_forward);
  CHECK(op->info().fused.previous == FusedPasses::Previous::none);
}

}  // namespace annulus
