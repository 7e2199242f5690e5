#include "models/memory/memory_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <ranges>

#include "kernels/base/random.h"
#include "kernels/device.h"
#include "models/network/model.h"
#include "models/zoo/zoo.h"
#include "tests/unit/small_network.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr std::size_t kUnit = MemoryPlan::kAlignment;

std::vector<std::size_t> units(const MemoryPlan& plan) {
  std::vector<std::size_t> offsets;
  for (const std::size_t offset : plan.offsets) offsets.push_back(offset / kUnit);
  return offsets;
}

constexpr std::size_t kMoments = 100;  // more than any piece has

bool is_kept(const Lifetime& piece, std::size_t moment) {
  const auto within = [moment](const LiveRange& range) { return range.begin <= moment && moment <= range.end; };
  return within(piece.first) || (piece.again && within(*piece.again));
}

void check_valid(const std::vector<Lifetime>& pieces, const MemoryPlan& plan) {
  REQUIRE(plan.offsets.size() == pieces.size());
  std::size_t end = 0;
  for (std::size_t a = 0; a < pieces.size(); ++a) {
    if (pieces[a].bytes == 0) continue;
    REQUIRE(plan.offsets[a] % kUnit == 0);
    end = std::max(end, plan.offsets[a] + pieces[a].bytes);
    for (std::size_t b = 0; b < a; ++b) {
      const bool together = std::ranges::any_of(std::views::iota(std::size_t{0}, kMoments), [&](std::size_t moment) {
        return is_kept(pieces[a], moment) && is_kept(pieces[b], moment);
      });
      const bool apart =
          plan.offsets[a] + pieces[a].bytes <= plan.offsets[b] || plan.offsets[b] + pieces[b].bytes <= plan.offsets[a];
      REQUIRE((!together || apart || pieces[b].bytes == 0));
    }
  }
  REQUIRE(plan.bytes == (end + kUnit - 1) / kUnit * kUnit);
}

// A lower bound for any plan.
std::size_t most_at_a_moment(const std::vector<Lifetime>& pieces) {
  std::size_t most = 0;
  for (std::size_t moment = 0; moment < kMoments; ++moment) {
    std::size_t sum = 0;
    for (const Lifetime& piece : pieces)
      if (is_kept(piece, moment)) sum += (piece.bytes + kUnit - 1) / kUnit * kUnit;
    most = std::max(most, sum);
  }
  return most;
}

// Some values of one unit each.
class UnitLayout final : public Layout {
 public:
  std::size_t bytes() const override { return kUnit; }
  std::string name() const override { return "unit"; }
};

class UnitOp final : public Op {
 public:
  explicit UnitOp(bool computes_next) {
    info_.inputs.assign(2, {.backward_reads = false});
    info_.backward_reads_output = false;
    info_.fused.next_forward = computes_next;
  }
  void require_input() { info_.inputs[0].backward_reads = true; }
  void fuse(FusedPasses::Previous passes) { info_.fused.previous = passes; }
  void add_to_gradients() {
    for (InputUse& input : info_.inputs) input.adds_to_gradient = true;
  }
  void hand_on_gradients() {
    for (InputUse& input : info_.inputs) input.gradient_may_overwrite = input.gradient_is_outputs = true;
  }
  void keep_output_gradient() { info_.keeps_output_gradient = true; }
  void compute_previous() { info_.fused.previous_forward = true; }
  void bind(const Bindings&) override {}
  void forward() override {}
  void backward(float) override {}
};

using UnitOps = std::vector<std::unique_ptr<UnitOp>>;

UnitOps unit_ops(const Graph& graph) {
  UnitOps ops;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) ops.push_back(std::make_unique<UnitOp>(false));
  return ops;
}

ActivationPlan plan_units(const Graph& graph, const UnitOps& ops, Mode mode) {
  std::vector<const Op*> views;
  for (const auto& op : ops) views.push_back(op.get());
  return {graph,
          {0, views.size()},
          views,
          std::vector<TensorSpec>(graph.values(), {{1}, DataType::f32, std::make_shared<UnitLayout>()}),
          mode};
}

// The plan of a chain of nodes, in which the backward pass of the fourth reads the output of the third. If `fused`, the
// third computes the fourth.
ActivationPlan plan_chain(const Graph& graph, Mode mode, bool fused) {
  UnitOps ops = unit_ops(graph);
  ops[2] = std::make_unique<UnitOp>(fused);
  ops[3]->require_input();
  return plan_units(graph, ops, mode);
}

}  // namespace

TEST_CASE("a fused output is kept from the pass before it on") {
  Graph graph({1, 1, 1});
  Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  x = graph.add("first", Dense{1}, {x});
  x = graph.add({.name = "second", .operation = Dense{1}, .inputs = {x}, .recomputed = true});
  const Value act = graph.add({.name = "act", .operation = Relu{}, .inputs = {x}, .recomputed = true});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Dense{1}, {act}), Graph::kLabels});
  std::vector<std::byte> arena(20 * kUnit);
  const DeviceView memory{arena.data(), arena.size()};
  const auto share = [&](Mode mode, bool fused, Value other) {
    const ActivationPlan plan = plan_chain(graph, mode, fused);
    REQUIRE(plan.bytes() <= arena.size());
    return plan.view(plan.value(act), memory).address == plan.view(plan.value(other), memory).address;
  };
  // The input is read in that pass, and the loss is in memory when it runs again.
  CHECK(share(Mode::inference, false, act - 2));
  CHECK_FALSE(share(Mode::inference, true, act - 2));
  CHECK(share(Mode::training, false, act + 2));
  CHECK_FALSE(share(Mode::training, true, act + 2));
}

// The fourth node computes the output of the third from that of the second, or only reads both.
TEST_CASE("an output that the next pass computes has no memory, and what it is computed from is kept") {
  Graph graph({1, 1, 1});
  Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  const Value first = graph.add({.name = "first", .operation = Dense{1}, .inputs = {x}, .recomputed = true});
  const Value left_out = graph.add({.name = "second", .operation = Dense{1}, .inputs = {first}, .recomputed = true});
  x = graph.add({.name = "third", .operation = Dense{1}, .inputs = {left_out}, .recomputed = true});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Dense{1}, {x}), Graph::kLabels});
  using enum FusedPasses::Previous;
  for (const auto fusion : {none, part, output}) {
    const auto ops = unit_ops(graph);
    ops[3]->require_input();
    ops[3]->fuse(fusion);
    const ActivationPlan plan = plan_units(graph, ops, Mode::training);
    std::vector<std::byte> arena(plan.bytes());
    const DeviceView memory{arena.data(), arena.size()};
    const auto address = [&](Value value) { return plan.view(plan.value(value), memory).address; };
    CHECK((address(left_out) == nullptr) == (fusion == output));
    // Forward of the fourth reads it while its own output is written.
    CHECK((address(first) != address(x)) == (fusion != none));
    // And so does its backward, before which both are recomputed.
    CHECK(plan.recomputed_before(3) == std::vector<std::size_t>{1, 2});
  }
}

TEST_CASE("a gradient that is left to the pass before has no copy, and is kept until then") {
  Graph graph({1, 1, 1});
  const Value input = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  const Value first = graph.add("first", Dense{1}, {input}), second = graph.add("second", Dense{1}, {first});
  const Value third = graph.add("third", Dense{1}, {second});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Dense{1}, {third}), Graph::kLabels});
  for (const bool left : {false, true}) {
    const auto ops = unit_ops(graph);
    if (left) ops[3]->fuse(FusedPasses::Previous::output_only);
    const ActivationPlan plan = plan_units(graph, ops, Mode::training);
    std::vector<std::byte> arena(plan.bytes());
    const auto gradient = [&](Value value) { return plan.view(plan.gradient(value), {arena.data(), arena.size()}); };
    CHECK((gradient(second).address == gradient(third).address) == left);
    CHECK(gradient(first).address != gradient(second).address);  // the second reads one while it writes the other
  }
}

// The fifth node computes the output of the fourth, from both of its inputs, or only reads that output.
TEST_CASE("the inputs of a block's end are kept until the next pass computes its output") {
  Graph graph({1, 1, 1});
  Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  const Value first = graph.add("first", Dense{1}, {x});
  const Value end = graph.add("end", Add{}, {graph.add("second", Dense{1}, {first}), first});
  const Value next = graph.add("next", Dense{1}, {end});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Add{}, {next, end}), Graph::kLabels});
  for (const bool computes : {false, true}) {
    const auto ops = unit_ops(graph);
    if (computes) ops[4]->fuse(FusedPasses::Previous::shared_output);
    const ActivationPlan plan = plan_units(graph, ops, Mode::inference);
    std::vector<std::byte> arena(plan.bytes());
    const auto address = [&](Value value) {
      return plan.view(plan.value(value), {arena.data(), arena.size()}).address;
    };
    for (const Value input : {first, first + 1}) CHECK(address(input) != address(end));
    const bool kept = address(next) != address(first) && address(next) != address(first + 1);
    CHECK(kept == computes);
  }
}

// A residual addition of `shared` and a layer that reads it, or of what another layer made of it.
TEST_CASE("the gradients of both inputs of an addition have the memory of the output's, if none changes too early") {
  enum class Case { shared, scratch, read_twice, changed_before, changed_by_reader };
  const auto which =
      GENERATE(Case::shared, Case::scratch, Case::read_twice, Case::changed_before, Case::changed_by_reader);
  const bool swapped = GENERATE(false, true);
  CAPTURE(static_cast<int>(which), swapped);
  Graph graph({1, 1, 1});
  Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  const Value shared = graph.add("shared", Dense{1}, {x});
  const Value norm = which == Case::changed_by_reader ? shared : graph.add("norm", Dense{1}, {shared});
  const Value branch = graph.add("branch", Dense{1}, {norm});
  // In backward it runs before the branch, and adds to the gradient of `shared`.
  const Value late = which == Case::changed_before ? graph.add("late", Dense{1}, {shared}) : branch;
  const Value sum = graph.add("sum", Add{}, swapped ? std::vector{shared, branch} : std::vector{branch, shared});
  x = which == Case::changed_before || which == Case::read_twice ? graph.add("second sum", Add{}, {sum, late}) : sum;
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Dense{1}, {x}), Graph::kLabels});
  const auto ops = unit_ops(graph);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops[i]->add_to_gradients();
    if (std::holds_alternative<Add>(graph.nodes()[i].operation)) ops[i]->hand_on_gradients();
    if (which != Case::scratch) ops[i]->keep_output_gradient();
  }
  const ActivationPlan plan = plan_units(graph, ops, Mode::training);
  CHECK((plan.gradient(shared) == plan.gradient(branch)) == (which == Case::shared));
  if (which != Case::shared) return;
  CHECK(plan.gradient(sum) == plan.gradient(shared));
  const auto added = plan.input_gradients(2)[0];
  CHECK(added.piece == plan.gradient(shared));
  CHECK(added.accumulate);
}

// The fifth node computes the fourth, from both inputs.
TEST_CASE("the inputs of an addition are kept until the next pass has computed it") {
  Graph graph({1, 1, 1});
  Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  const Value first = graph.add("first", Dense{1}, {x});
  const Value sum = graph.add("sum", Add{}, {graph.add("second", Dense{1}, {first}), first});
  const Value norm = graph.add("norm", Dense{1}, {sum});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Add{}, {norm, sum}), Graph::kLabels});
  for (const bool computes : {false, true}) {
    const auto ops = unit_ops(graph);
    if (computes) ops[4]->compute_previous();
    const ActivationPlan plan = plan_units(graph, ops, Mode::inference);
    std::vector<std::byte> arena(plan.bytes());
    const auto address = [&](Value value) {
      return plan.view(plan.value(value), {arena.data(), arena.size()}).address;
    };
    for (const Value input : {first, first + 1}) CHECK(address(input) != address(sum));
    CHECK(address(norm) != address(sum));
    CHECK((address(norm) != address(first) && address(norm) != address(first + 1)) == computes);
  }
}

// The first reader of a value, the last in backward, reads the others' gradient and writes the sum elsewhere.
TEST_CASE("a gradient that is added elsewhere has two pieces in that pass only") {
  Graph graph({1, 1, 1});
  Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  const Value shared = graph.add("shared", Dense{1}, {x});
  const Value first = graph.add("first", Dense{1}, {shared});
  x = graph.add("second", Add{}, {first, shared});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Dense{1}, {x}), Graph::kLabels});
  for (const bool elsewhere : {false, true}) {
    const auto ops = unit_ops(graph);
    for (const auto& op : ops) op->add_to_gradients();
    if (elsewhere) ops[2]->fuse(FusedPasses::Previous::shared_part);
    const ActivationPlan plan = plan_units(graph, ops, Mode::training);
    std::vector<std::byte> arena(plan.bytes());
    const auto address = [&](const ActivationPlan::Piece& piece) {
      return plan.view(piece, {arena.data(), arena.size()}).address;
    };
    const auto by_others = plan.input_gradients(3)[1], own = plan.input_gradients(2)[0];
    CHECK(own.piece == plan.gradient(shared));
    CHECK(own.accumulate == !elsewhere);
    CHECK(own.others == (elsewhere ? by_others.piece : std::nullopt));
    CHECK((address(own.piece) == address(by_others.piece)) == !elsewhere);
    CHECK(address(own.piece) != address(plan.gradient(first)));
  }
}

TEST_CASE("a reader that adds a gradient elsewhere runs before the other readers, and after them in backward") {
  Graph graph({1, 1, 1});
  const Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  const Value shared = graph.add("shared", Dense{1}, {x});
  const Value between = graph.add("between", Dense{1}, {shared});
  const Value shortcut = graph.add("shortcut", Dense{1}, {between});
  const Value reader = graph.add("reader", Dense{1}, {shared});
  const Value sum = graph.add("sum", Add{}, {graph.add("after", Dense{1}, {reader}), shortcut});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("last", Dense{1}, {sum}), Graph::kLabels});
  constexpr std::size_t kFirst = 2, kReader = 4;
  for (const bool elsewhere : {false, true}) {
    CAPTURE(elsewhere);
    const auto ops = unit_ops(graph);
    for (const auto& op : ops) op->add_to_gradients();
    if (elsewhere) ops[kReader]->fuse(FusedPasses::Previous::shared_part);
    const ActivationPlan training = plan_units(graph, ops, Mode::training);
    using Order = std::vector<std::size_t>;
    CHECK(training.order() == (elsewhere ? Order{0, 1, 4, 2, 3, 5, 6, 7, 8} : Order{0, 1, 2, 3, 4, 5, 6, 7, 8}));
    const auto first = training.input_gradients(kFirst)[0], own = training.input_gradients(kReader)[0];
    CHECK(first.accumulate == !elsewhere);
    CHECK_FALSE(own.accumulate);
    CHECK(own.others == (elsewhere ? first.piece : std::nullopt));
    CHECK(training.gradient(shared) == (elsewhere ? own : first).piece);
    const ActivationPlan inference = plan_units(graph, ops, Mode::inference);
    std::vector<std::byte> arena(inference.bytes());
    const auto address = [&](Value value) {
      return inference.view(inference.value(value), {arena.data(), arena.size()}).address;
    };
    CHECK((address(reader) == address(between)) == !elsewhere);  // if not, both are kept for a while
  }
}

TEST_CASE("memory plans worked out by hand") {
  CHECK(plan_memory({}).bytes == 0);
  const auto planned = [](const std::vector<Lifetime>& pieces) {
    const MemoryPlan plan = plan_memory(pieces);
    check_valid(pieces, plan);
    return plan;
  };
  // Disjoint lifetimes share memory. If the last moment of one is the first of the other, they do not.
  CHECK(units(planned({{kUnit, {0, 1}}, {kUnit, {2, 3}}})) == std::vector<std::size_t>{0, 0});
  CHECK(units(planned({{kUnit, {0, 2}}, {kUnit, {2, 3}}})) == std::vector<std::size_t>{0, 1});
  // A piece of no bytes takes no memory; a piece of one byte has memory of its own.
  CHECK(planned({{0, {0, 9}}, {0, {3, 4}}}).bytes == 0);
  CHECK(planned({{1, {0, 1}}, {1, {0, 1}}}).bytes == 2 * kUnit);
  CHECK(planned({{kUnit, {0, 1}}, {kUnit - 1, {0, 1}}, {kUnit + 1, {0, 1}}}).bytes == 4 * kUnit);
  // The largest is placed first, and the others after it.
  CHECK(units(planned({{kUnit, {0, 1}}, {3 * kUnit, {0, 1}}})) == std::vector<std::size_t>{3, 0});
  // The last finds two gaps, from 6 to 8 and from 13 to 14, and takes the tight one.
  CHECK(units(planned({{14 * kUnit, {10, 10}},
                       {8 * kUnit, {0, 0}},
                       {6 * kUnit, {1, 9}},
                       {5 * kUnit, {0, 9}},
                       {4 * kUnit, {9, 10}},
                       {kUnit, {9, 9}}})) == std::vector<std::size_t>{0, 0, 0, 8, 14, 13});
}

TEST_CASE("memory plans separate overlapping lifetimes, close to the lower bound") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::vector<Lifetime> pieces(mix(seed, 0) % 60);
    const std::size_t moments = 1 + mix(seed, 1) % 40;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::size_t begin = mix(seed, 2, i) % moments;
      const std::size_t end = std::min(moments, begin + mix(seed, 5, i) % moments);
      pieces[i] = {mix(seed, 3, i) % 5 * mix(seed, 4, i) % 5000, {begin, end}};
      if (mix(seed, 6, i) % 4 == 0) pieces[i].again = {end + 1, end + 1 + mix(seed, 7, i) % 10};
    }
    CAPTURE(seed);
    const MemoryPlan plan = plan_memory(pieces);
    check_valid(pieces, plan);
    CHECK(plan.offsets == plan_memory(pieces).offsets);
    CHECK(plan.bytes >= most_at_a_moment(pieces));
    CHECK(plan.bytes <= most_at_a_moment(pieces) * 3 / 2);
  }
}

TEST_CASE("a network reuses the memory of activations") {
  const auto device = test::make_device(1);
  const Task task{{32, 32, 3}, {0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}, 10};
  constexpr std::size_t kBatch = 16;
  Model model(*device, make_model("resnet20", task), Mode::training, kBatch);
  const ActivationPlan& training = model.network(Mode::training, kBatch).activation_plan();
  const ActivationPlan& inference = model.network(Mode::inference, kBatch).activation_plan();
  CHECK(activation_arena_bytes(*device, make_model("resnet20", task), Mode::training, kBatch) == training.bytes());
  // In training each convolution's input is kept, and each batch norm's, but no gradient.
  CHECK(training.bytes() < training.bytes_without_reuse() * 7 / 10);
  // In inference, at any moment, an operation's input and output, the block's input for its shortcut, and scratch:
  // mostly the transformed weights of a layer of 64 channels (kernels/cpu/convolution/winograd.h).
  const std::size_t largest = kBatch * 16 * 32 * 32 * sizeof(float);
  CHECK(inference.bytes() >= 2 * largest);
  CHECK(inference.bytes() <= 4 * largest + 36 * 64 * 64 * sizeof(float));
}

TEST_CASE("a layer whose output is unused is refused in training") {
  const auto device = test::make_device(1);
  Graph graph({4, 4, 1});
  const Value x = graph.add("input", ImageInput{{0.5f}, {0.5f}}, {Graph::kImages});
  graph.add("lonely", Convolution{.channels = 2, .kernel = 1}, {x});
  graph.add("loss", SoftmaxCrossEntropy{}, {graph.add("dense", Dense{3}, {x}), Graph::kLabels});
  CHECK_THROWS_WITH(Network(*device, graph, Mode::training, 1, {}), Catch::Contains("lonely"));
  CHECK_NOTHROW(Network(*device, graph, Mode::inference, 1, {}));
}

}  // namespace annulus
