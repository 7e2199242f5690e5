#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <vector>

#include "models/zoo/zoo.h"
#include "src/step/strategies.h"
#include "tests/gpu/emulator_tests/emulation_test.h"
#include "tests/mpi/image_batch.h"

// Races between the streams of whole training steps, in which updates run beside backward and forward.

using namespace annulus;

namespace {

constexpr std::size_t kBatch = 2, kSide = 16, kClasses = 10, kSteps = 4;

enum class Mistake { none, updates_do_not_wait };

// Of one rank: an array is reduced when the lane has computed it.
class OneRank final : public AllReduce {
 public:
  OneRank(Device& device, Mistake mistake) : AllReduce({"test", "test"}), device_(device), mistake_(mistake) {}

  DeviceView allocate(std::size_t bytes, Memory) override {
    return memory_.emplace_back(device_.allocate(bytes)).view();
  }
  Ticket enqueue(DeviceView, const Request&) override {
    computed_.push_back(device_.mark());
    return computed_.size() - 1;
  }
  void wait(Ticket ticket) override { device_.seconds(computed_[ticket]); }
  void join(Ticket ticket) override {
    if (mistake_ == Mistake::none) device_.await(computed_[ticket]);
  }

 private:
  Device& device_;
  const Mistake mistake_;
  std::vector<Buffer> memory_;
  std::vector<Mark> computed_;
};

struct Updates {
  Precision precision = Precision::bf16;  // in fp16 updates run beside the next forward
  UpdateRule rule = Sgd{.momentum = 0.9f};
  double deferred = 0;
};

// For Muon.
UpdateFactors factors_of(const std::string& parameter) {
  return {.orthogonalizes = parameter.find("conv") != std::string::npos && parameter.ends_with(".weight")};
}

// The first steps are recorded, the others replayed.
void train(Mistake mistake, const Updates& updates) {
  const auto device = make_device({.name = "cuda", .threads = 1, .precision = updates.precision});
  OneRank all_reduce(*device, mistake);
  const Task task{{kSide, kSide, 3}, {0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}, kClasses};
  Model model(*device, make_model("resnet20", task), Mode::training, kBatch, allocate_in(all_reduce));
  Optimizer optimizer(*device, model.parameters(), updates.rule, 0.05f, 0.9, Optimizer::Keeps::all, factors_of);
  Ledger ledger(0);
  Activity activity;
  const auto step = make_step({model, all_reduce, optimizer, ledger, activity},
                              {.bytes = std::size_t{64} << 10, .deferred = updates.deferred, .late = 0}, {});
  model.parameters().initialize(7);
  optimizer.begin_average();
  for (std::size_t number = 0; number < kSteps; ++number) {
    const StepPlan plan{0, {number * kBatch, (number + 1) * kBatch}, false};
    step->run(test::image_batch(plan, plan.positions, kSide * kSide * 3, kClasses), {}, device->mark());
  }
  step->finish();
}

Ending ending_of_training(Mistake mistake, const Updates& updates) {
  return ending_of([=] {
    setenv("ANNULUS_EMULATED_RACES", "streams", 1);
    train(mistake, updates);
  });
}

}  // namespace

TEST_CASE("updates beside the passes have no races with them, and one that does not wait is reported", "[.step]") {
  const Updates updates = GENERATE(Updates{}, Updates{.precision = Precision::fp16},
                                   Updates{.rule = Lars{.momentum = 0.9f}, .deferred = 0.5},
                                   Updates{.rule = Muon{.steps = 2}, .deferred = 0.5},
                                   Updates{.precision = Precision::fp16, .rule = Muon{.steps = 2}});
  CHECK(ending_of_training(Mistake::none, updates).text == "");
  const Ending ending = ending_of_training(Mistake::updates_do_not_wait, updates);
  CHECK(ending.signal == SIGABRT);
  CHECK_THAT(ending.text, Catch::Contains("a race between streams"));
}
