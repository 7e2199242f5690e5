#include "src/step/update_share.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "collectives/world/world.h"
#include "models/zoo/zoo.h"
#include "src/step/strategies.h"
#include "src/step/synchronous_step.h"
#include "tests/mpi/image_batch.h"
#include "tests/mpi/owned_buckets.h"

using namespace annulus;

namespace {

const Task kTask{{6, 5, 1}, {0.5f}, {0.25f}, 4};

std::vector<std::byte> bytes_of(DeviceView view) {
  return {view.address, view.address + view.bytes};
}

// Weights and momentum after some steps.
struct Trained {
  std::vector<std::byte> weights, momentum;
};

template <class MakeStep>
Trained train(const World& world, const Sgd& rule, Optimizer::Keeps keeps, const MakeStep& make) {
  const auto device = make_device("cpu", 1);
  Model model(*device, make_model("mlp", kTask), Mode::training, 2);
  Optimizer optimizer(*device, model.parameters(), rule, 0.1f, 0, keeps);
  const auto all_reduce = make_all_reduce("auto", world, *device);
  Ledger ledger(0);
  Activity activity;
  const std::unique_ptr<Step> step = make(StepTools{model, *all_reduce, optimizer, ledger, activity});
  model.parameters().initialize(3);
  const auto ranks = static_cast<std::size_t>(world.size());
  for (std::size_t i = 0; i < 5; ++i) {
    const StepPlan plan{0, {2 * i * ranks, 2 * (i + 1) * ranks}, false};
    step->expect(plan);
    step->run(test::image_batch(plan, plan.share(world.rank(), world.size(), 0, 1), 30, kTask.classes), {},
              device->mark());
  }
  step->finish();
  return {bytes_of(model.parameters().weights()), bytes_of(step->kept_state().gather(optimizer.state(0)))};
}

}  // namespace

TEST_CASE("the example of an update share trains to the bits of a synchronous step") {
  const World world;
  const auto rank = static_cast<std::size_t>(world.rank()), ranks = static_cast<std::size_t>(world.size());
  const Sgd rule{.momentum = 0.9f, .weight_decay = 0.01f};
  const BucketOptions buckets{.bytes = 1024};
  const Trained expected =
      train(world, rule, Optimizer::Keeps::all, [&](const StepTools& tools) { return make_step(tools, buckets, {}); });
  const Trained found = train(world, rule, Optimizer::Keeps::slices, [&](const StepTools& tools) {
    return std::make_unique<SynchronousStep>(tools, buckets, StepOptions{},
                                             std::make_unique<test::OwnedBuckets>(tools, rank, ranks));
  });
  CHECK(found.weights == expected.weights);
  CHECK(found.momentum == expected.momentum);
}
