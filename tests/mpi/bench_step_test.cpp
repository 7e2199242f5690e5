#include "src/bench/bench_step.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "models/zoo/zoo.h"
#include "src/checkpoint/restore.h"

using namespace annulus;

namespace {

BenchStepOptions network(const std::string& model, const std::vector<std::size_t>& image, std::size_t classes) {
  BenchStepOptions options;
  options.model = model;
  options.image = image;
  options.classes = classes;
  return options;
}

const BenchStepOptions kAnyNetwork = network("", {}, 0);

// Writes a checkpoint as from a run of the smallest model, in a file that all ranks read.
struct TrainedRun {
  explicit TrainedRun(const World& all) : world(all) {
    std::uint64_t name = static_cast<std::uint64_t>(getpid());
    all.broadcast(std::as_writable_bytes(std::span(&name, 1)));
    path = std::filesystem::temp_directory_path() / fmt::format("annulus-bench-step-{}", name);
    const auto device = make_device("cpu", 1);
    Model model(*device, make_model("mlp", {{4, 4, 1}, {0.5f}, {0.25f}, 3}), Mode::training, 2);
    model.parameters().initialize(3);
    const Optimizer optimizer(*device, model.parameters(), Sgd{.momentum = 0.9f}, 0.1f);
    checkpoint.parameters = snapshot(model);
    checkpoint.optimizer = optimizer.name();
    add_state(checkpoint, model, optimizer.state(0));
    checkpoint.model = "mlp";
    checkpoint.run.step = 17;
    checkpoint.image = {4, 4};
    checkpoint.data = {
        .height = 4, .width = 4, .channels = 1, .classes = {"a", "b", "c"}, .mean = {0.5f}, .stddev = {1}};
  }

  // The benchmark of the step from this state.
  nlohmann::json bench(BenchStepOptions options = kAnyNetwork) {
    if (world.root()) write_checkpoint(path, checkpoint);
    world.barrier();
    options.from = path;
    options.device.threads = 1;
    options.batch = 2;
    options.seconds = 0.001;
    options.json = path.string() + ".json";
    bench_step(world, options);
    world.barrier();  // rank 0 has written it
    return nlohmann::json::parse(std::ifstream(options.json));
  }

  std::string complaint(const BenchStepOptions& options = kAnyNetwork) {
    std::string text;
    try {
      bench(options);
    } catch (const Error& error) {
      text = error.what();
    }
    return text;
  }

  NamedTensor& tensor(const std::string& name) {
    return *std::ranges::find(checkpoint.parameters, name, &NamedTensor::name);
  }

  ~TrainedRun() {
    world.barrier();  // all have read it
    std::filesystem::remove(path);
    std::filesystem::remove(path.string() + ".json");
  }

  const World& world;
  std::filesystem::path path;
  Checkpoint checkpoint;
};

}  // namespace

TEST_CASE("bench step starts from a checkpoint's network, weights and optimizer state") {
  const World world;
  TrainedRun run(world);
  SECTION("unchanged") {
    const nlohmann::json found = run.bench();
    CHECK(found["trained_steps"] == 17);
    CHECK(found["rows"][0]["model"] == "mlp");
  }
  // All logits become infinite.
  SECTION("weights that overflow") {
    auto &weight = run.tensor("fc3.weight").values, &bias = run.tensor("fc3.bias").values;
    weight.assign(weight.size(), 1e38f);
    bias.assign(bias.size(), 3.4e38f);
    CHECK_THAT(run.complaint(), Catch::StartsWith("the loss is"));
  }
  SECTION("momentum that makes weights overflow") {
    constexpr float kLargest = std::numeric_limits<float>::max();
    NamedTensor& bias = run.tensor("fc3.bias");
    bias.values.assign(bias.values.size(), -kLargest);
    bias.states.at(0).assign(bias.values.size(), kLargest);
    CHECK_THAT(run.complaint(), Catch::StartsWith("the loss is"));
  }
}

TEST_CASE("bench step refuses a checkpoint of another network than requested") {
  const World world;
  TrainedRun run(world);
  CHECK_THAT(run.complaint(network("lenet", {}, 0)),
             Catch::EndsWith("is of mlp for images of 4x4x1 and 3 classes: remove --model"));
  CHECK_THAT(run.complaint(network("", {28, 28, 1}, 0)), Catch::EndsWith("remove --image"));
  CHECK_THAT(run.complaint(network("", {}, 10)), Catch::EndsWith("remove --classes"));
  CHECK(run.complaint(network("mlp", {4, 4, 1}, 3)).empty());
}
