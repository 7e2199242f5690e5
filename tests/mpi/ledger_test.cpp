#include "src/step/ledger.h"

#include <array>
#include <catch2/catch.hpp>
#include <vector>

using namespace annulus;

namespace {

struct Wait {
  double ready, begin, end;
};

// Adds the waits and the arrival of a step.
void add_waits(Ledger& ledger, std::span<const Wait> buckets) {
  for (const Wait& bucket : buckets) ledger.add_wait(bucket.ready, bucket.begin, bucket.end);
  ledger.add_arrival(buckets.back().ready);
}

}  // namespace

TEST_CASE("the parts of a step add up to its wall time") {
  const World world;
  Ledger ledger(0);
  const double mine = world.rank() + 1;  // the ranks' times differ, and their mean is booked
  for (int step = 0; step < 3; ++step) {
    ledger.add(StepTimes::input, 0.25 * mine);
    ledger.add(StepTimes::compute, 2);
    ledger.add(StepTimes::compute, 1);
    ledger.add(StepTimes::optimizer, 0.5);
    const std::vector<Wait> buckets{{10, 11, 12}};
    add_waits(ledger, buckets);
    ledger.end_step(8);
  }
  const StepTimes times = ledger.close(world).mean();
  const double mean = (world.size() + 1) / 2.0;
  CHECK(times.steps == 3);
  CHECK(times.wall() == Approx(24));
  CHECK(times.seconds[StepTimes::input] == Approx(0.75 * mean));
  CHECK(times.seconds[StepTimes::compute] == Approx(9));
  CHECK(times.seconds[StepTimes::optimizer] == Approx(1.5));
  CHECK(times.seconds[StepTimes::exposed_communication] == Approx(3));
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == 0);
  CHECK(times.seconds[StepTimes::rest] == Approx(24 - 0.75 * mean - 9 - 1.5 - 3));

  const StepTimes none = ledger.close(world).mean();  // empty after close()
  CHECK(none.steps == 0);
  CHECK(none.wall() == 0);
}

TEST_CASE("a wait counts as waiting until the last rank is ready, then as communication") {
  const World world;
  const int n = world.size();
  Ledger ledger(0);
  // Rank r is ready at r and begins to wait immediately. All all-reduces are complete at n + 1.
  const std::vector<Wait> buckets{{static_cast<double>(world.rank()), static_cast<double>(world.rank()), n + 1.0}};
  add_waits(ledger, buckets);
  ledger.end_step(n + 1.0 - world.rank());
  const StepTimes times = ledger.close(world).mean();
  // The last rank is ready at n - 1: the others wait n - 1 - r for it, and all ranks wait 2 for the bytes.
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == Approx((n - 1) / 2.0));
  CHECK(times.seconds[StepTimes::exposed_communication] == Approx(2));
  CHECK(times.seconds[StepTimes::rest] == Approx(0).margin(1e-12));
  CHECK(times.wall() == Approx(n + 1 - (n - 1) / 2.0));
}

TEST_CASE("every bucket of every step has its own last rank") {
  const World world;
  const int n = world.size();
  Ledger ledger(0);
  // There are two buckets: the first is late on rank 0, the second on the last rank; both waits last from 10 to 14.
  const double early = 3, late = 11;
  for (int step = 0; step < 2; ++step) {
    const std::vector<Wait> buckets{{world.root() ? late : early, 10, 14},
                                    {world.rank() == n - 1 ? late + 1 : early, 10, 14}};
    add_waits(ledger, buckets);
    ledger.end_step(20);
  }
  const StepTimes times = ledger.close(world).mean();
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == Approx(2 * (1 + 2)));
  CHECK(times.seconds[StepTimes::exposed_communication] == Approx(2 * (3 + 2)));
  CHECK(times.seconds[StepTimes::rest] == Approx(2 * (20 - 8)));
}

TEST_CASE("a rank that is ready after a wait has ended does not make it longer") {
  const World world;
  Ledger ledger(0);
  // Clocks are imperfect: another rank seems to be ready only at 9, after the all-reduce was complete at 6.
  const std::vector<Wait> buckets{{9, 4, 6}};
  add_waits(ledger, buckets);
  ledger.end_step(6);
  const StepTimes times = ledger.close(world).mean();
  CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == Approx(2));
  CHECK(times.seconds[StepTimes::exposed_communication] == 0);
  CHECK(times.seconds[StepTimes::rest] == Approx(4));
}

TEST_CASE("timestamps are compared on the root's clock") {
  const World world;
  // Rank r's clock is r times 100 seconds behind the clock of rank 0.
  const double offset = 100.0 * world.rank();
  Ledger ledger(offset);
  const double late = world.root() ? 7 : 1;
  const std::vector<Wait> buckets{{late - offset, 5 - offset, 8 - offset}};
  add_waits(ledger, buckets);
  ledger.end_step(3);
  const StepTimes times = ledger.close(world).mean();
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

namespace {

constexpr int kSteps = 10;
constexpr double kMargin = 1e-9;

// Steps of 200 ms with two buckets, on clocks that differ by a second from rank to rank: the last rank computes for 150
// ms, the others for 100; the second bucket's all-reduce completes 20 ms after the last rank's gradients.
Accounts made_up_accounts(const World& world) {
  const bool late = world.rank() == world.size() - 1;
  const double offset = world.rank();
  const double compute = late ? 0.15 : 0.1;
  Ledger ledger(offset);
  for (int step = 0; step < kSteps; ++step) {
    const double begin = 100 + step - offset;
    const Wait first{begin + 0.05, begin + compute, begin + compute};
    const Wait second{begin + compute, begin + compute, begin + (world.size() > 1 ? 0.17 : compute)};
    ledger.add(StepTimes::compute, compute);
    add_waits(ledger, std::array{first, second});
    ledger.end_step(0.2);
  }
  return ledger.close(world);
}

}  // namespace

TEST_CASE("every rank's accounts add up to its wall time, and all ranks see them") {
  const World world;
  const auto ranks = static_cast<std::size_t>(world.size());
  const Accounts accounts = made_up_accounts(world);
  REQUIRE(accounts.ranks.size() == ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const StepTimes& times = accounts.ranks[rank];
    const bool late = rank + 1 == ranks;
    CAPTURE(rank);
    CHECK(times.steps == kSteps);
    CHECK(times.wall() == Approx(0.2 * kSteps));
    CHECK(times.seconds[StepTimes::compute] == Approx((late ? 0.15 : 0.1) * kSteps));
    CHECK(times.seconds[StepTimes::waiting_for_slower_ranks] == Approx(late ? 0 : 0.05 * kSteps).margin(kMargin));
    CHECK(times.seconds[StepTimes::exposed_communication] == Approx(ranks > 1 ? 0.02 * kSteps : 0).margin(kMargin));
  }
  CHECK(accounts.mean().wall() == Approx(0.2 * kSteps));
}

TEST_CASE("the rank that made the others wait is named, with the time") {
  const World world;
  const Lateness late = made_up_accounts(world).latest();
  CHECK(late.rank == static_cast<std::size_t>(world.size() - 1));
  CHECK(late.last == kSteps);
  CHECK(late.seconds == Approx(world.size() > 1 ? 0.05 : 0).margin(kMargin));
  CHECK(late.share == Approx(world.size() > 1 ? 0.25 : 0).margin(kMargin));
}

TEST_CASE("ranks that do not wait for each other are not late") {
  const World world;
  Ledger ledger(0);
  ledger.add(StepTimes::compute, 1 + world.rank());
  ledger.end_step(1 + world.rank());
  const Accounts accounts = ledger.close(world);
  CHECK(accounts.arrivals.empty());
  CHECK(accounts.latest().seconds == 0);
  CHECK(accounts.ranks.back().wall() == Approx(world.size()));
}

TEST_CASE("waiting between steps is accounted, and belongs to no step") {
  const World world;
  Ledger ledger(0);
  ledger.add(StepTimes::compute, 3);
  ledger.add_arrival(3);
  ledger.end_step(3);
  ledger.add_wait(1, 4, 6);
  ledger.add_between_steps(2.5);
  const StepTimes times = ledger.close(world).mean();
  CHECK(times.steps == 1);
  CHECK(times.seconds[StepTimes::exposed_communication] == Approx(2));
  CHECK(times.seconds[StepTimes::rest] == Approx(0.5));
  CHECK(times.wall() == Approx(5.5));
}
