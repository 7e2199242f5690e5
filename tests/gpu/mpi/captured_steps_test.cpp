// The number of graphs that a step launches on the emulated GPU.

#include <cuda_runtime.h>

#include <catch2/catch.hpp>

#include "models/zoo/zoo.h"
#include "src/step/strategies.h"
#include "tests/mpi/image_batch.h"

namespace annulus {
namespace {

constexpr std::size_t kBatch = 4, kClasses = 10, kSide = 16;

// Returns the number of graphs launched in a step, when all of its work has been recorded.
std::size_t graphs_in_step(const World& world, Precision precision, const StepOptions& options,
                           const BucketOptions& buckets = {}) {
  const auto device = make_device({.name = "cuda", .threads = 1, .precision = precision});
  const auto all_reduce = make_all_reduce("auto", world, *device);
  const Task task{{kSide, kSide, 3}, {0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}, kClasses};
  Model model(
      *device, make_model("resnet20", task), Mode::training, kBatch, allocate_in(*all_reduce), [] {},
      allocate_weights(options.strategy, *all_reduce));
  Optimizer optimizer(*device, model.parameters(), AdamW{}, 0.01f, 0.9, kept_by(options.strategy));
  Ledger ledger(0);
  Activity activity;
  const auto step = make_step({model, *all_reduce, optimizer, ledger, activity}, buckets, options);
  model.parameters().initialize(7);
  optimizer.begin_average();
  std::size_t before = 0;
  for (std::size_t number = 0; number < 3; ++number) {
    const StepPlan plan{0, {number * kBatch, (number + 1) * kBatch}, false};
    before = emulated::graph_launches();
    step->expect(plan);
    step->run(test::image_batch(plan, plan.positions, kSide * kSide * 3, kClasses), {}, device->mark());
    step->finish();
  }
  return emulated::graph_launches() - before;
}

}  // namespace

TEST_CASE("a rank alone launches a step's passes as one graph") {
  const World world;
  if (world.size() > 1) return;
  const Precision precision = GENERATE(Precision::bf16, Precision::fp16);
  CAPTURE(to_string(precision));
  const BucketOptions small{.bytes = std::size_t{64} << 10};
  CHECK(graphs_in_step(world, precision, {}) == 1);
  CHECK(graphs_in_step(world, precision, {}, small) == 1);
  CHECK(graphs_in_step(world, precision, {.clip_norm = 1}) == 1);
  CHECK(graphs_in_step(world, precision, {.global_batch = kBatch, .strategy = LocalRounds{{kBatch, 1}, "average"}}) ==
        1);
  // Gradients of earlier parts are added between the loss's gradient and the other gradients.
  CHECK(graphs_in_step(world, precision, {.parts = 2}) == 4);
}

}  // namespace annulus
