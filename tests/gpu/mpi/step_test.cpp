// The whole training step on a GPU: recordings and allocations.

#include <cuda_runtime.h>

#include <catch2/catch.hpp>

#include "kernels/base/random.h"
#include "models/synchronize.h"
#include "models/zoo.h"
#include "src/step/trainer.h"
#include "tests/unit/random_values.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr std::size_t kBatch = 4, kClasses = 10;
const Task kTask{{16, 16, 3}, {0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}, kClasses};

Batch random_batch(std::uint64_t step, std::size_t size) {
  Batch batch;
  batch.step = {0, {0, size}, false};
  const auto pixels = test::random_pixels(size * 16 * 16 * 3, step);
  batch.images.assign(pixels.begin(), pixels.end());
  batch.labels = test::random_labels(size, kClasses, step + 1);
  return batch;
}

struct Run {
  Run(Precision precision, const UpdateRule& rule, const BucketOptions& buckets, TraceLane* lane = nullptr,
      const StepOptions& options = {})
      : device(make_device({.name = "cuda", .precision = precision})),
        all_reduce(make_all_reduce("auto", world, *device)),
        model(*device, graph(precision), Mode::training, kBatch, allocate_in(*all_reduce)),
        optimizer(*device, model.parameters(), rule, 0.05f, 0.9),
        trainer(model, *all_reduce, optimizer, ledger, buckets, activity, lane, options) {
    model.record_to(lane);
    model.parameters().initialize(7);
    optimizer.begin_average();
  }

  // In one precision, with layers that cannot be recorded.
  static Graph graph(Precision precision) {
    const Graph plain = make_model("resnet20", kTask);
    return precision == Precision::fp32 ? synchronize_batch_norms(plain) : plain;
  }

  void steps(std::uint64_t begin, std::uint64_t end) {
    // The last one is smaller, as at the end of an epoch.
    for (std::uint64_t step = begin; step < end; ++step)
      trainer.step(random_batch(step, step % 4 == 3 ? 3 : kBatch), {}, device->mark());
    trainer.finish();
  }

  std::vector<std::byte> weights() { return test::bytes_of(*device, model.parameters().weights()); }

  const World world;
  std::unique_ptr<Device> device;
  std::unique_ptr<AllReduce> all_reduce;
  Model model;
  Optimizer optimizer;
  Ledger ledger{0};
  Activity activity;
  Trainer trainer;
};

bool many_ranks() {
  return World().size() > 2;  // one and two ranks cover all cases
}

std::size_t free_memory() {
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return free;
}

}  // namespace

TEST_CASE("recorded steps are bit-identical to steps without recording") {
  if (many_ranks()) return;
  const Precision precision = GENERATE(Precision::fp32, Precision::bf16, Precision::fp16);
  // Many captured segments in one precision, few in the others.
  const BucketOptions buckets{precision == Precision::bf16 ? std::size_t{4096} : std::size_t{1} << 20, 0};
  // The steps of 3 samples have no fourth part.
  const StepOptions options = precision == Precision::fp32 ? StepOptions{} : StepOptions{.parts = 4, .clip_norm = 1};
  CAPTURE(to_string(precision), buckets.bytes, options.parts);
  TraceLane lane(100'000);
  lane.record(true);  // with spans of every layer nothing is recorded
  Run recorded(precision, Sgd{.momentum = 0.9f}, buckets, nullptr, options);
  Run one_by_one(precision, Sgd{.momentum = 0.9f}, buckets, &lane, options);
  recorded.steps(0, 8);
  one_by_one.steps(0, 8);
  CHECK(recorded.weights() == one_by_one.weights());
  CHECK(test::bytes_of(*recorded.device, recorded.optimizer.average()) ==
        test::bytes_of(*one_by_one.device, one_by_one.optimizer.average()));
  REQUIRE_FALSE(lane.spans().empty());
  for (const TraceLane::Span& span : lane.spans()) {
    REQUIRE(span.begin > 0);
    REQUIRE(span.begin <= span.end);
  }
}

TEST_CASE("overlapped updates give the same parameters as sequential steps") {
  if (many_ranks()) return;
  Run deferred(Precision::bf16, AdamW{}, {4096, 0.5}), plain(Precision::bf16, AdamW{}, {4096, 0});
  REQUIRE(deferred.trainer.buckets().deferred().size() > 0);
  deferred.steps(0, 6);
  plain.steps(0, 6);
  CHECK(deferred.weights() == plain.weights());
}

TEST_CASE("sharded steps keep a share of the optimizer's state in GPU memory") {
  const World world;
  const auto device = make_device("cuda");
  const auto all_reduce = make_all_reduce("ring", world, *device);
  const Task task{{64, 64, 3}, {0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}, kClasses};
  Model model(
      *device, make_model("mlp", task), Mode::training, 1, allocate_in(*all_reduce), [] {},
      allocate_weights("sharded", *all_reduce));
  // By all ranks together, if they share the GPU.
  const auto taken_by = [&](const std::string& strategy) {
    world.barrier();
    const std::size_t before = free_memory();
    world.barrier();
    Optimizer optimizer(*device, model.parameters(), AdamW{}, 0.1f, 0.9, kept_by(strategy));
    Ledger ledger(0);
    Activity activity;
    const Trainer trainer(model, *all_reduce, optimizer, ledger, {}, activity, nullptr, {.strategy = strategy});
    world.barrier();
    const std::size_t after = free_memory();
    world.barrier();
    return static_cast<double>(before - after);
  };
  const double whole = taken_by("synchronous"), share = taken_by("sharded");
  CHECK(whole > 3.0 * static_cast<double>(model.parameters().gradients().bytes));
  CHECK(share < (1.0 / world.size() + 0.05) * whole);
}

TEST_CASE("a step allocates no GPU memory") {
  if (many_ranks()) return;
  const Precision precision = GENERATE(Precision::bf16, Precision::fp16);
  Run run(precision, Lars{.momentum = 0.9f}, {}, nullptr, {.parts = 2, .clip_norm = 1});
  run.steps(0, 8);  // plans, workspaces, recordings
  const std::size_t before = free_memory();
  run.steps(8, 16);
  CHECK(free_memory() == before);
}

}  // namespace annulus
