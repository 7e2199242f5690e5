#include <catch2/catch.hpp>
#include <numeric>

#include "src/metrics/results.h"

namespace annulus {

namespace {

// Rank r's parts are r + 1 times 0.1, 0.2, ... seconds, but rank 1 waits the longest.
Accounts accounts_of(std::size_t ranks) {
  Accounts accounts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    accounts.ranks_in_job.push_back(rank);
    StepTimes& times = accounts.ranks.emplace_back();
    for (std::size_t part = 0; part < StepTimes::kParts; ++part)
      times.seconds[part] = 0.1 * static_cast<double>((part + 1) * (rank + 1));
    times.steps = 10;
  }
  if (ranks > 1) accounts.ranks[1].seconds[StepTimes::waiting_for_slower_ranks] = 5;
  return accounts;
}

}  // namespace

TEST_CASE("step times averaged over ranks add up to the mean wall time") {
  const Accounts accounts = accounts_of(3);
  const StepTimes mean = accounts.mean();
  CHECK(mean.steps == 10);
  CHECK(mean.seconds[StepTimes::input] == Approx(0.2));
  CHECK(mean.seconds[StepTimes::waiting_for_slower_ranks] == Approx((0.4 + 5 + 1.2) / 3));
  double walls = 0;
  for (const StepTimes& rank : accounts.ranks) walls += rank.wall();
  CHECK(mean.wall() == Approx(walls / 3));
}

TEST_CASE("a rank that is always slightly late is distinguished from occasional delays") {
  Accounts accounts = accounts_of(3);
  accounts.arrivals = {{0.5, 5}, {0.5, 5}, {0.4, 0}};
  CHECK(accounts.latest().seconds == 0);
  accounts.arrivals = {{0.1, 1}, {0.1, 0}, {0.4, 9}};
  const Lateness late = accounts.latest();
  CHECK(late.rank == 2);
  CHECK(late.seconds == Approx(0.03));  // a step
  CHECK(late.share == Approx(0.3 / accounts.mean().wall()));
  CHECK(late.last == 9);
}

TEST_CASE("of two ranks, the later one is compared with the other") {
  Accounts accounts = accounts_of(2);
  accounts.arrivals = {{0.5, 10}, {0, 0}};
  CHECK(accounts.latest().rank == 0);
  CHECK(accounts.latest().seconds == Approx(0.05));
}

TEST_CASE("accounts of several epochs are added rank by rank") {
  Accounts total;
  Accounts epoch = accounts_of(2);
  epoch.arrivals = {{0.5, 10}, {0, 0}};
  total += epoch;
  total += epoch;
  CHECK(total.mean().steps == 20);
  CHECK(total.ranks[1].seconds[StepTimes::input] == Approx(0.4));
  CHECK(total.latest().seconds == Approx(0.05));
  CHECK(total.latest().last == 20);

  epoch = accounts_of(2);  // between steps
  for (StepTimes& rank : epoch.ranks) rank.steps = 0;
  total += epoch;
  CHECK(total.mean().steps == 20);
  CHECK(total.ranks[1].seconds[StepTimes::input] == Approx(0.6));
  CHECK(total.latest().last == 20);
}

TEST_CASE("after a loss, ranks keep their numbers and their times") {
  Accounts before = accounts_of(4), after = accounts_of(2);
  before.arrivals = {{0.1, 1}, {0.2, 9}, {0, 0}, {0.1, 0}};
  after.ranks_in_job = {0, 3};
  after.arrivals = {{0, 0}, {0.4, 10}};
  before += after;
  CHECK(before.ranks_in_job == std::vector<std::size_t>{0, 3});
  CHECK(before.mean().steps == 20);
  CHECK(before.ranks[1].seconds[StepTimes::input] == Approx(0.4 + 0.2));
  CHECK(before.latest().rank == 3);
  CHECK(before.latest().last == 10);
  CHECK(before.arrivals[1].behind_first == Approx(0.5));
  CHECK(ledger_json(before)["worst"]["input"]["rank"] == 3);
  CHECK_THAT(lateness_line(before), Catch::StartsWith("rank 3 is the latest"));
}

TEST_CASE("the table and the file name the slowest rank, unless there is only one") {
  Accounts accounts = accounts_of(3);
  accounts.arrivals = {{0.1, 1}, {0.1, 0}, {0.4, 9}};
  const nlohmann::json json = ledger_json(accounts);
  CHECK(json["worst"]["waiting_for_slower_ranks"]["rank"] == 1);
  CHECK(json["worst"]["waiting_for_slower_ranks"]["seconds"] == 5);
  CHECK(json["worst"]["compute"]["rank"] == 2);
  CHECK(json["ranks"]["compute"].size() == 3);
  CHECK(json["latest"]["rank"] == 2);
  CHECK_THAT(ledger_table(accounts), Catch::Contains("500.000 ms on rank 1"));
  CHECK_THAT(lateness_line(accounts), Catch::Contains("rank 2") && Catch::Contains("9 of 10 steps"));

  const Accounts none;
  CHECK(ledger_json(none)["wall"] == 0);
  CHECK_THAT(ledger_table(none), Catch::Contains("0 steps"));

  const Accounts alone = accounts_of(1);
  CHECK_THAT(ledger_table(alone), !Catch::Contains("rank 0"));
  CHECK(lateness_line(alone).empty());
  CHECK(!ledger_json(alone).contains("latest"));
}

}  // namespace annulus
