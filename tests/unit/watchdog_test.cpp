#include "src/job/watchdog.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace annulus {
using Phase = Activity::Phase;

namespace {

constexpr double kStall = 0.2;  // seconds

void sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Waits until the condition holds, or gives up.
template <class Condition>
bool eventually(const Condition& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) sleep(0.01);
  return condition();
}

}  // namespace

TEST_CASE("the watchdog reports a stall once, after the timeout") {
  AllReduceProgress sums;
  std::atomic<int> barks = 0;
  Watchdog watchdog(kStall, [&](const Stall&) { ++barks; });
  const Watchdog::Watched watched(watchdog, sums);
  Activity& activity = watchdog.activity();
  activity.enter(Phase::planning);
  for (int i = 0; i < 10; ++i) {  // slow progress: each kind in turn
    sleep(kStall / 4);
    if (i % 4 == 0) activity.tick();
    if (i % 4 == 1) activity.begin_step(1);
    if (i % 4 == 2) sums.await(0);
    if (i % 4 == 3) sums.enter({"ring step", 1, 2});
  }
  CHECK(barks == 0);
  sleep(4 * kStall);
  CHECK(barks == 1);
}

TEST_CASE("phases that wait for other ranks, MPI_Init included, have a longer timeout") {
  for (const Phase phase : {Phase::starting_mpi, Phase::meeting}) {
    std::atomic<double> seconds = 0;
    Watchdog watchdog(kStall / 4, [&](const Stall& stall) { seconds = stall.seconds; });
    if (phase != Phase::starting_mpi) watchdog.activity().enter(phase);
    sleep(kStall);
    CHECK(seconds.load() == 0);
    CHECK(eventually([&] { return seconds > 0; }));
    CHECK(seconds.load() == Approx(10 * kStall / 4));
  }
}

TEST_CASE("between steps the timeout is the short one") {
  std::atomic<double> seconds = 0;
  Watchdog watchdog(kStall, [&](const Stall& stall) { seconds = stall.seconds; });
  watchdog.activity().enter(Phase::between_steps);
  CHECK(eventually([&] { return seconds > 0; }));
  CHECK(seconds.load() == Approx(kStall));
}

TEST_CASE("a command is not watched before its first report of activity") {
  std::atomic<int> barks = 0;
  Watchdog watchdog(kStall / 8, [&](const Stall&) { ++barks; });
  watchdog.activity().enter(Phase::unwatched);
  sleep(2 * kStall);
  CHECK(barks == 0);
  watchdog.activity().enter(Phase::forward);
  CHECK(eventually([&] { return barks == 1; }));
}

TEST_CASE("an all-reduce is watched only during its lifetime") {
  std::atomic<bool> had_sums = true;
  Watchdog watchdog(kStall / 8, [&](const Stall& stall) { had_sums = stall.all_reduce.has_value(); });
  {
    const AllReduceProgress sums;
    const Watchdog::Watched watched(watchdog, sums);
  }
  watchdog.activity().enter(Phase::forward);
  CHECK(eventually([&] { return !had_sums; }));
}

TEST_CASE("a timeout of 0 disables the watchdog, and its thread ends with it") {
  std::atomic<int> barks = 0;
  {
    const Watchdog off(0, [&](const Stall&) { ++barks; });
  }
  {
    const Watchdog patient(3600, [&](const Stall&) { ++barks; });
  }  // does not block
  CHECK(barks == 0);
}

TEST_CASE("the description of a stalled rank") {
  Activity activity;
  AllReduceProgress sums;
  bool summing = false;
  const auto text = [&] {
    Stall stall{.activity = activity.snapshot(), .all_reduce = {}, .seconds = 1};
    if (summing) stall.all_reduce = sums.snapshot();
    return fmt::to_string(describe(stall));
  };
  CHECK(text() == ": starting MPI and waiting for the other ranks to start");
  activity.enter(Phase::comparing);
  CHECK(text() == ": comparing options and data with the other ranks");
  summing = true;
  activity.enter(Phase::planning);
  CHECK(text() == ": planning the network; all-reduce: idle");
  activity.plan(3);
  activity.begin_step(5);
  CHECK(text() == " in step 5: beginning the step; all-reduce: idle");
  activity.enter(Phase::input);
  CHECK(text() == " in step 5: waiting for input; all-reduce: idle");
  activity.enter(Phase::backward);
  sums.begin(0);
  sums.end(0);
  sums.begin(1);
  CHECK(text() == " in step 5: backward; all-reduce: bucket 2 of 3");
  sums.enter({"all-gather, ring step", 4, 6});
  sums.await(7);
  activity.enter(Phase::waiting_for_bucket, 1);
  CHECK(text() ==
        " in step 5: waiting for bucket 2 of 3; all-reduce: bucket 2 of 3, all-gather, ring step 4 of 6, waiting for "
        "rank 7");
  sums.end(0);
  sums.begin(2);
  CHECK(text() == " in step 5: waiting for bucket 2 of 3; all-reduce: bucket 3 of 3");
  sums.end(0);
  activity.enter(Phase::optimizer, 1);
  CHECK(text() == " in step 5: updating bucket 2 of 3; all-reduce: idle");
}

}  // namespace annulus
