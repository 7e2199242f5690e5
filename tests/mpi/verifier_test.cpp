#include "src/step/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>
#include <string>

#include "kernels/base/host_memory.h"
#include "models/zoo/zoo.h"
#include "src/step/strategies.h"
#include "tests/mpi/image_batch.h"

using namespace annulus;

namespace {

const Task kTask{{6, 5, 1}, {0.5f}, {0.25f}, 4};
constexpr std::size_t kShards = 28;
constexpr AdamW kRule{};

void flip(DeviceView view, std::size_t element, int bit) {
  reinterpret_cast<std::uint32_t*>(view.address)[element] ^= std::uint32_t{1} << bit;
}

// ANNULUS_FLIPS=300 flips as many bits.
std::size_t trials() {
  const char* const text = std::getenv("ANNULUS_FLIPS");
  return text == nullptr ? 20 : std::stoul(text);
}

// A run that goes back to a copy of the state when the ranks have differed.
struct Run {
  explicit Run(const World& world_) : world(world_) {
    model.parameters().initialize(3);
    optimizer.begin_average();
    for (int number = 0; number < 3; ++number) train();
    copy.take();
    step->hooks.reduced = [this, next = step->hooks.reduced](std::size_t bucket, DeviceView sum) {
      disturb(bucket, sum);
      next(bucket, sum);
    };
    step->hooks.computed = [this, next = step->hooks.computed](const BatchPart& part, std::size_t count) {
      miscompute(count);
      next(part, count);
    };
    step->hooks.before_update = [this] { verifier.compare(copy); };
  }

  StepOptions options() const {
    return {.shards = kShards,
            .rank = static_cast<std::size_t>(world.rank()),
            .ranks = static_cast<std::size_t>(world.size())};
  }

  void train() {
    constexpr std::size_t kBatch = kShards;
    const std::size_t number = optimizer.step() % 40;
    const StepPlan plan{0, {number * kBatch, (number + 1) * kBatch}, false};
    const Range share = plan.share(world.rank(), world.size(), kShards);
    step->run(test::image_batch(plan, share, 30, kTask.classes), {}, device->mark());
  }

  // Trains for some steps. Returns the finding and the number of steps until then; none if nothing was found.
  std::optional<std::pair<ReplicasDiffer, std::size_t>> found_within(std::size_t steps) {
    for (std::size_t number = 1; number <= steps; ++number) try {
        train();
      } catch (const ReplicasDiffer& difference) {
        return {{difference, number}};
      }
    return std::nullopt;
  }

  void go_back() {
    disturb = [](std::size_t, DeviceView) {};
    miscompute = [](std::size_t) {};
    step->await_all_reduces();
    CHECK(std::ranges::all_of(floats(model.parameters().gradients()), [](float value) { return value == 0; }));
    step->continue_with(options());
    verifier.forget();
    copy.restore();
  }

  bool names(const ReplicasDiffer& difference, int rank) const {
    std::vector<int> all;
    for (int one = 0; one < world.size(); ++one) all.push_back(one);
    return difference.suspects() == (world.size() > 2 ? std::vector{rank} : all);  // two have no majority
  }

  const World& world;
  std::unique_ptr<Device> device = make_device("cpu", 1);
  std::unique_ptr<AllReduce> all_reduce = make_shard_all_reduce(world, *device, kShards);
  Model model{*device, make_model("mlp", kTask), Mode::training, 2, allocate_in(*all_reduce)};
  Optimizer optimizer{*device, model.parameters(), kRule, 0.01f, 0.99};
  Ledger ledger{0};
  Activity activity;
  std::unique_ptr<Step> step = make_step({model, *all_reduce, optimizer, ledger, activity}, {.bytes = 4096}, options());
  StateCopy copy{model, optimizer, step->kept_state()};
  Verifier verifier{world, model, optimizer, *step, activity, kShards};
  std::function<void(std::size_t, DeviceView)> disturb = [](std::size_t, DeviceView) {};
  std::function<void(std::size_t)> miscompute = [](std::size_t) {};
};

}  // namespace

TEST_CASE("undisturbed ranks do not differ") {
  const World world;
  Run run(world);
  CHECK_FALSE(run.found_within(60));
  CHECK((world.size() == 1) == (run.verifier.sound_until() == 0));
  CHECK_NOTHROW(run.verifier.compare(run.copy));
}

TEST_CASE("a flipped bit in a sum is found in its step, and rank and bucket are named") {
  const World world;
  if (world.size() == 1) return;
  Run run(world);
  std::mt19937 random(5);
  const std::size_t buckets = run.step->buckets().size();
  CHECK(buckets > 3);
  std::size_t named = 0;
  for (std::size_t trial = 0; trial < trials(); ++trial) {
    const int rank = static_cast<int>(random() % static_cast<unsigned>(world.size())), bit = random() % 32;
    const std::size_t in = random() % buckets, element = random() % run.step->buckets().range(in).size();
    run.disturb = [&](std::size_t bucket, DeviceView sum) {
      if (bucket == in && world.rank() == rank) flip(sum, element, bit);
    };
    const auto found = run.found_within(1);
    const std::string where = fmt::format("first in bucket {} of {}: ", in + 1, buckets);
    CAPTURE(trial, rank, in, element, bit);
    CHECK(found);
    if (found && run.names(found->first, rank) && found->first.finding().find(where) != std::string::npos) ++named;
    run.go_back();
  }
  CHECK(named == trials());
  CHECK_FALSE(run.found_within(3));
}

TEST_CASE("a flipped bit in the state is found within 16 steps, and the rank is named") {
  const World world;
  if (world.size() == 1) return;
  Run run(world);
  std::mt19937 random(7);
  std::size_t named = 0, vanished = 0, last = 0;
  for (std::size_t trial = 0; trial < trials(); ++trial) {
    const std::vector arrays{run.model.parameters().weights(), run.optimizer.state(0), run.optimizer.state(1),
                             run.optimizer.average()};
    const int rank = static_cast<int>(random() % static_cast<unsigned>(world.size())), bit = random() % 32;
    const std::size_t array = random() % arrays.size();
    const std::size_t element = random() % (arrays[array].bytes / sizeof(float));
    if (world.rank() == rank) flip(arrays[array], element, bit);
    const auto found = run.found_within(Verifier::kParts);
    CAPTURE(trial, rank, array, element, bit);
    if (found) {
      CHECK(run.names(found->first, rank));
      ++named;
      last = std::max(last, found->second);
    } else {  // rounding has removed it: beside it, an update was large
      CHECK_FALSE(find_difference(world, run.model, run.optimizer));
      ++vanished;
    }
    run.go_back();
  }
  INFO(vanished << " vanished, the latest was found after " << last << " steps");
  CHECK(named + vanished == trials());
  CHECK(named >= trials() / 3);
}

TEST_CASE("a copy with a flipped bit is not taken for a copy") {
  const World world;
  if (world.size() == 1) return;
  Run run(world);
  if (world.rank() == 1) flip(run.model.parameters().weights(), 40, 3);
  run.copy.take();
  CHECK_THROWS_AS(run.verifier.compare(run.copy), ReplicasDiffer);
}

TEST_CASE("a rank that computes wrong is named within 200 steps") {
  const World world;
  if (world.size() == 1) return;
  Run run(world);
  for (int wrong = 0; wrong < world.size(); ++wrong) {
    const DeviceView gradients = run.model.parameters().gradients();
    std::size_t parts = 0;
    run.miscompute = [&](std::size_t count) {
      const bool complete = count == gradients.bytes / sizeof(float);
      if (complete && ++parts > 20 && world.rank() == wrong) flip(gradients, count - 40, 12);
    };
    const auto found = run.found_within(ShardCheck::kEvery);
    CAPTURE(wrong);
    CHECK(found);
    if (!found) continue;
    CHECK(run.names(found->first, wrong));
    CHECK(found->first.sound_until() < run.optimizer.step());
    CHECK_THAT(found->first.finding(), Catch::Contains("a shard has other gradients when another rank computes it"));
    run.go_back();
  }
}
