#include "src/watchdog.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

using namespace annulus;
using Phase = Activity::Phase;

namespace {

constexpr double kStall = 0.2;  // seconds

void sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

TEST_CASE("a watchdog barks once, when nothing has moved for long enough") {
  Activity activity;
  SumActivity sums;
  std::atomic<int> barks = 0;
  const Watchdog watchdog(activity, sums, kStall, [&] { ++barks; });
  for (int i = 0; i < 10; ++i) {  // slow, but it moves: each kind of move in turn
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

TEST_CASE("who waits at a meeting is given longer") {
  Activity activity;
  const SumActivity sums;
  activity.enter(Phase::meeting);
  std::atomic<int> barks = 0;
  const Watchdog watchdog(activity, sums, kStall / 4, [&] { ++barks; });
  sleep(kStall);
  CHECK(barks == 0);
  sleep(4 * kStall);
  CHECK(barks == 1);
}

TEST_CASE("no watchdog where the time is 0, and none outlives its end") {
  const Activity activity;
  const SumActivity sums;
  std::atomic<int> barks = 0;
  {
    const Watchdog off(activity, sums, 0, [&] { ++barks; });
  }
  {
    const Watchdog patient(activity, sums, 3600, [&] { ++barks; });
  }  // does not make us wait
  CHECK(barks == 0);
}

TEST_CASE("what a rank is doing, in words") {
  Activity activity;
  SumActivity sums;
  const auto text = [&] { return fmt::to_string(describe(activity.look(), sums.look())); };
  CHECK(text() == "step 0: starting; all-reduce: idle");
  activity.plan(3);
  activity.begin_step(5);
  CHECK(text() == "step 5: waiting for input; all-reduce: idle");
  activity.enter(Phase::backward);
  sums.begin_sum(0);
  sums.end_sum();
  sums.begin_sum(1);
  CHECK(text() == "step 5: backward; all-reduce: bucket 2 of 3");
  sums.enter({"all-gather, ring step", 4, 6});
  sums.await(7);
  activity.enter(Phase::waiting_for_bucket, 1);
  CHECK(text() ==
        "step 5: waiting for bucket 2 of 3; all-reduce: bucket 2 of 3, all-gather, ring step 4 of 6, waiting for rank "
        "7");
  sums.end_sum();
  sums.begin_sum(2);
  CHECK(text() == "step 5: waiting for bucket 2 of 3; all-reduce: bucket 3 of 3");
  sums.end_sum();
  activity.enter(Phase::optimizer, 1);
  CHECK(text() == "step 5: updating bucket 2 of 3; all-reduce: idle");
}
