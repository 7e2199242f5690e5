#include "src/ledger.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace annulus;

TEST_CASE("the parts of the step times add up to the wall") {
  const World world;
  Ledger ledger(0);
  const double mine = world.rank() + 1;  // the ranks' times differ, and their mean is booked
  for (int step = 0; step < 3; ++step) {
    ledger.add(StepTimes::input, 0.25 * mine);
    ledger.add(StepTimes::compute, 2);
    ledger.add(StepTimes::compute, 1);
    ledger.add(StepTimes::optimizer, 0.5);
    const std::vector<GradientBuckets::Times> buckets{{10, 11, 12}};
    ledger.add_waits(buckets);
    ledger.end_step(8);
  }
  const StepTimes times = ledger.close(world);
  const double mean = (world.size() + 1) / 2.0;
  CHECK(times.steps == 3);
  CHECK(times.wall() == Approx(24));
  CHECK(times.seconds[StepTimes::input] == Approx(0.75 * mean));
  CHECK(times.seconds[StepTimes::compute] == Approx(9));
  CHECK(times.seconds[StepTimes::optimizer] == Approx(1.5));
  CHECK(times.seconds[StepTimes::exposed_communication] == Approx(3));
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == 0);
  CHECK(times.seconds[StepTimes::rest] == Approx(24 - 0.75 * mean - 9 - 1.5 - 3));

  const StepTimes none = ledger.close(world);  // a closed book is empty
  CHECK(none.steps == 0);
  CHECK(none.wall() == 0);
}

TEST_CASE("a wait is for slower ranks until the last is ready, for communication from then on") {
  const World world;
  const int n = world.size();
  Ledger ledger(0);
  // Rank r is ready at r and begins to wait at once. All sums are there at n + 1.
  const std::vector<GradientBuckets::Times> buckets{
      {static_cast<double>(world.rank()), static_cast<double>(world.rank()), n + 1.0}};
  ledger.add_waits(buckets);
  ledger.end_step(n + 1.0 - world.rank());
  const StepTimes times = ledger.close(world);
  // The last is ready at n - 1: the others wait n - 1 - r for it, and everyone 2 for the bytes.
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == Approx((n - 1) / 2.0));
  CHECK(times.seconds[StepTimes::exposed_communication] == Approx(2));
  CHECK(times.seconds[StepTimes::rest] == Approx(0).margin(1e-12));
  CHECK(times.wall() == Approx(n + 1 - (n - 1) / 2.0));
}

TEST_CASE("each step's each bucket has its own last rank") {
  const World world;
  const int n = world.size();
  Ledger ledger(0);
  // Of two buckets: the first is late on rank 0, the second on the last rank; both waits last from 10 to 14.
  const double early = 3, late = 11;
  for (int step = 0; step < 2; ++step) {
    const std::vector<GradientBuckets::Times> buckets{{world.root() ? late : early, 10, 14},
                                                      {world.rank() == n - 1 ? late + 1 : early, 10, 14}};
    ledger.add_waits(buckets);
    ledger.end_step(20);
  }
  const StepTimes times = ledger.close(world);
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == Approx(2 * (1 + 2)));
  CHECK(times.seconds[StepTimes::exposed_communication] == Approx(2 * (3 + 2)));
  CHECK(times.seconds[StepTimes::rest] == Approx(2 * (20 - 8)));
}

TEST_CASE("a rank that is ready after a wait has ended does not make it longer") {
  const World world;
  Ledger ledger(0);
  // No clock is perfect: another rank seems to be ready only at 9, after the sum was there at 6.
  const std::vector<GradientBuckets::Times> buckets{{9, 4, 6}};
  ledger.add_waits(buckets);
  ledger.end_step(6);
  const StepTimes times = ledger.close(world);
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == Approx(2));
  CHECK(times.seconds[StepTimes::exposed_communication] == 0);
  CHECK(times.seconds[StepTimes::rest] == Approx(4));
}

TEST_CASE("moments are compared on the root's clock") {
  const World world;
  // Each rank's own clock is behind the root's by a hundred seconds a rank.
  const double offset = 100.0 * world.rank();
  Ledger ledger(offset);
  const double late = world.root() ? 7 : 1;
  const std::vector<GradientBuckets::Times> buckets{{late - offset, 5 - offset, 8 - offset}};
  ledger.add_waits(buckets);
  ledger.end_step(3);
  const StepTimes times = ledger.close(world);
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == Approx(2));
  CHECK(times.seconds[StepTimes::exposed_communication] == Approx(1));
  CHECK(times.seconds[StepTimes::rest] == Approx(0).margin(1e-9));
}

TEST_CASE("step times add up") {
  StepTimes a, b;
  a.seconds = {1, 2, 3, 4, 5, 6};
  a.steps = 2;
  b.seconds = {10, 20, 30, 40, 50, 60};
  b.steps = 3;
  a += b;
  CHECK(a.steps == 5);
  CHECK(a.wall() == 231);
  CHECK(a.seconds[StepTimes::rest] == 66);
}
