#include "src/step/step_clock.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace annulus {
namespace {

void sleep() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

struct Clocked {
  Clocked() {
    ledger.observe([this](double wall_seconds, double compute_seconds) {
      wall.push_back(wall_seconds);
      compute.push_back(compute_seconds);
    });
  }

  void begin() {
    clock.begin(device->mark());
    clock.loaded(device->mark());
  }

  std::unique_ptr<Device> device = make_device("cpu", 1);
  Ledger ledger{0};
  Activity activity;
  StepClock clock{*device, ledger, activity, nullptr, true, true};
  std::vector<double> wall, compute;  // of each booked step
};

}  // namespace

TEST_CASE("a step's waits within its passes are not computing, and its computing is this rank's own time") {
  Clocked c;
  c.begin();
  c.clock.wait(Activity::Phase::waiting_for_stage, "wait", sleep);
  c.clock.work(Activity::Phase::optimizer, StepClock::Kind::transfers, sleep);
  c.clock.add(StepClock::Kind::interruption, c.clock.wait_within_pass(sleep));
  c.clock.computed();
  c.clock.end(1);
  CHECK(c.wall.empty());  // not booked before its marks are asked for
  c.clock.settle_last();
  c.clock.settle_last();
  REQUIRE(c.wall.size() == 1);
  CHECK(c.wall.front() >= 0.06);
  CHECK(c.compute.front() < c.wall.front() - 0.06 + 1e-6);
  CHECK(c.clock.own_seconds() <= c.wall.front() - 0.02);  // without the wait for another stage
}

TEST_CASE("the parts of a long step are booked one by one, and the whole step once") {
  Clocked c;
  c.begin();
  for (int part = 0; part < 3; ++part) {
    c.clock.work(Activity::Phase::optimizer, StepClock::Kind::optimizer, sleep);
    c.clock.end_part();
  }
  c.clock.end_parts();
  c.clock.computed();
  c.clock.end(3);
  c.clock.settle_last();
  REQUIRE(c.wall.size() == 1);
  CHECK(c.compute.front() < c.wall.front() - 0.06 + 1e-6);
}

TEST_CASE("a step that was interrupted is not booked") {
  Clocked c;
  c.begin();
  c.clock.wait(Activity::Phase::waiting_for_stage, "wait", sleep);
  c.clock.discard();
  c.begin();
  c.clock.computed();
  c.clock.end(1);
  c.clock.settle_last();
  REQUIRE(c.wall.size() == 1);
  CHECK(c.wall.front() < 0.02);
}

}  // namespace annulus
