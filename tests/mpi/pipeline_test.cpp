#include <array>
#include <catch2/catch.hpp>
#include <map>

#include "kernels/base/error.h"
#include "models/network/stages.h"
#include "models/zoo/zoo.h"
#include "src/checkpoint/gather_stages.h"
#include "src/checkpoint/restore.h"
#include "src/step/strategies.h"
#include "src/train/pipeline.h"
#include "tests/mpi/image_batch.h"

using namespace annulus;

namespace {

const Task kTask = neutral_task({28, 28, 1}, 10);
constexpr std::size_t kPixels = 28 * 28;
constexpr Sgd kRule{.momentum = 0.9f, .weight_decay = 0.01f};

// Stages of about the same number of segments.
std::vector<Range> even_stages(const Graph& graph, std::size_t stages) {
  const auto segments = cut_everywhere(planned_graph(graph));
  std::vector<Range> found;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const Range own = split(segments.size(), stages, stage);
    found.push_back({segments[own.begin].begin, segments[own.end - 1].end});
  }
  return found;
}

// A rank of a pipeline, or, without one, of the replicas of a whole network.
struct Rank {
  Rank(const World& replicas_, const Graph& graph, const StepOptions& options, const std::optional<Range>& stage = {})
      : replicas(replicas_),
        model(
            *device, graph, Mode::training, 2, {}, [] {}, {}, stage),
        all_reduce(make_all_reduce("auto", replicas, *device)),
        step(make_step({model, *all_reduce, optimizer, ledger, activity}, {4096, 0}, options)) {
    model.parameters().initialize(3);
  }

  StepMetrics run(std::size_t number, std::size_t global_batch, const ControlFlags& flags = {}) {
    const StepPlan plan{0, {number * global_batch, (number + 1) * global_batch}, false};
    return step->run(test::image_batch(plan, plan.share(replicas.rank(), replicas.size()), kPixels, kTask.classes),
                     flags, device->mark());
  }

  ArraySource arrays() { return arrays_of(model, optimizer); }

  const World& replicas;
  std::unique_ptr<Device> device = make_device("cpu", 1);
  Model model;
  Optimizer optimizer{*device, model.parameters(), kRule, 0.05f};
  Ledger ledger{0};
  std::unique_ptr<AllReduce> all_reduce;
  Activity activity;
  std::unique_ptr<Step> step;
};

struct Array {
  explicit Array(const CheckpointArray& array)
      : name(fmt::format("{}/{}", array.group, array.name)),
        shape(array.shape),
        values(array.values.begin(), array.values.end()) {}
  bool operator==(const Array&) const = default;

  std::string name;
  Shape shape;
  std::vector<float> values;
};

// Also checks the announced sizes.
std::vector<Array> all(const ArraySource& source) {
  std::vector<Array> arrays;
  std::size_t values = 0;
  source.for_each([&](const CheckpointArray& array) {
    arrays.emplace_back(array);
    values += array.values.size();
  });
  CHECK(arrays.size() == source.arrays);
  CHECK(values == source.values);
  return arrays;
}

}  // namespace

TEST_CASE("blocks of ranks, and ranks across them") {
  const World world;
  for (int size = 1; size <= world.size(); ++size) {
    if (world.size() % size != 0) continue;
    const World block = world.block(size), across = world.across_blocks(size);
    CHECK(block.size() == size);
    CHECK(across.size() == world.size() / size);
    CHECK(block.rank() == world.rank() % size);
    CHECK(across.rank() == world.rank() / size);
    const auto ranks = across.gather(static_cast<std::uint64_t>(world.rank()));
    for (std::size_t i = 0; i < ranks.size(); ++i)
      CHECK(ranks[i] == i * static_cast<std::size_t>(size) + static_cast<std::size_t>(block.rank()));
  }
}

TEST_CASE("messages between stages arrive in order") {
  const World world;
  const auto device = make_device("cpu", 1);
  PipelineLink link(world, *device);
  for (std::size_t number = 0; number < 20; ++number) {
    const std::size_t bytes = 4 * (1 + 7000 * (number % 3));
    std::vector<std::byte> values(bytes, std::byte(number)), found(bytes);
    if (link.stage() + 1 < link.stages()) link.send({values.data(), bytes}, PipelineLink::Neighbour::next);
    if (link.stage() == 0) continue;
    link.receive({found.data(), bytes}, PipelineLink::Neighbour::previous);
    REQUIRE(found == values);
    link.progress();
  }
  std::array<double, 1> sum{1.0 + static_cast<double>(link.stage())};
  link.sum(sum);
  CHECK(sum[0] == world.size() * (world.size() + 1) / 2);
  world.barrier();
}

TEST_CASE("a pipeline trains to the same bits as ranks with the whole network") {
  const World world;
  const std::size_t ranks = static_cast<std::size_t>(world.size()), stages = GENERATE(1, 2, 4);
  if (ranks % stages != 0 || ranks / stages > 2) return;  // two replicas add in any order to the same bits
  const std::string name = GENERATE("lenet", "resnet20");
  const std::size_t parts = GENERATE(1, 3, 8);
  const float clip = GENERATE(0.0f, 0.5f);
  CAPTURE(stages, name, parts, clip);
  const Graph graph = make_model(name, kTask);
  const PipelineRanks grid(world, stages);
  const auto device = make_device("cpu", 1);
  PipelineLink link(grid.stages, *device);
  Rank piped(grid.replicas, graph, {.parts = parts, .clip_norm = clip, .pipeline = &link},
             even_stages(graph, stages)[link.stage()]);
  Rank whole(grid.replicas, graph, {.parts = parts, .clip_norm = clip});
  // Shares of different sizes, and fewer samples than parts.
  const std::size_t replicas = static_cast<std::size_t>(grid.replicas.size());
  std::size_t step = 0;
  for (const std::size_t batch : {8 * replicas, 5 * replicas + replicas / 2, replicas}) {
    const ControlFlags flags{.stop = world.rank() == 0 ? 1.0f : 0.0f, .checkpoint = 1, .skipped = 1};
    const StepMetrics found = piped.run(step, batch, flags), expected = whole.run(step, batch);
    ++step;
    CHECK(found.loss == expected.loss);
    CHECK(found.measure == expected.measure);
    const auto all = static_cast<float>(ranks);
    CHECK(found.control_flags == ControlFlags{.stop = 1, .checkpoint = all, .skipped = all});
  }
  piped.step->finish();
  whole.step->finish();
  const ArraySource found = gather_stages(grid.stages, piped.arrays());
  if (grid.stages.root()) CHECK(all(found) == all(whole.arrays()));
  const GradientNorms norms = piped.optimizer.take_norms(), expected_norms = whole.optimizer.take_norms();
  CHECK(norms.steps == (clip > 0 ? 3 : 0));
  CHECK(norms.sum == Approx(expected_norms.sum).epsilon(1e-14));
  CHECK(norms.largest >= clip);
  const StepTimes times = piped.ledger.close(world, grid.replicas).mean();
  CHECK(times.steps == 3);
  CHECK(times.seconds[StepTimes::rest] < 0.5 * times.wall());
}

TEST_CASE("the plan of a pipeline is the same on every rank, and covers the network") {
  const World world;
  const auto device = make_device("cpu", 1);
  const Graph graph = make_model("resnet20", kTask);
  Activity activity;
  const PipelinePlan plan = plan_pipeline(world, *device, graph, 3, 4, 2, 4, activity);
  REQUIRE(plan.nodes.size() == 3);
  CHECK(plan.cuts.size() == 2);
  CHECK(plan.nodes.front().begin == 0);
  CHECK(plan.nodes.back().end == planned_graph(graph).nodes().size());
  for (std::size_t stage = 0; stage < 3; ++stage) {
    if (stage > 0) CHECK(plan.nodes[stage].begin == plan.nodes[stage - 1].end);
    CHECK(plan.expected[stage].seconds > 0);
    const auto begins = world.gather(std::uint64_t{plan.nodes[stage].begin});
    for (const std::uint64_t begin : begins) CHECK(begin == plan.nodes[stage].begin);
  }
}

TEST_CASE("a resumed pipeline keeps its stages, if the network can be cut there") {
  const World world;
  const auto device = make_device("cpu", 1);
  const Graph graph = make_model("resnet20", kTask), planned = planned_graph(graph);
  const std::vector<Range> segments = cut_everywhere(planned);
  Activity activity;
  const auto plan = [&](const std::vector<std::string>& cuts) {
    return plan_pipeline(world, *device, graph, 3, 4, 2, 4, activity, cuts);
  };
  const auto first_layer = [&](std::size_t segment) { return planned.nodes()[segments[segment].begin].name; };
  const std::vector<std::string> uneven{first_layer(1), first_layer(2)};
  const PipelinePlan kept = plan(uneven);
  CHECK(kept.cuts == uneven);
  CHECK(kept.nodes == std::vector<Range>{segments[0], segments[1], {segments[2].begin, planned.nodes().size()}});
  CHECK(kept.expected[2].seconds > kept.expected[0].seconds);
  for (const std::vector<std::string>& cuts : {{uneven[0]},
                                               {uneven[1], uneven[0]},
                                               {uneven[0], uneven[0]},
                                               {first_layer(0), uneven[0]},
                                               {"no", "layer"},
                                               std::vector<std::string>{}}) {
    const PipelinePlan chosen = plan(cuts);
    CHECK(chosen.cuts.size() == 2);
    CHECK(chosen.cuts != cuts);
  }
}

TEST_CASE("stages that do not divide the ranks are an error") {
  const World world;
  const auto stages = static_cast<std::size_t>(world.size()) + 1;
  CHECK_THROWS_WITH(PipelineRanks(world, stages), Catch::Contains("cannot be divided among"));
}
