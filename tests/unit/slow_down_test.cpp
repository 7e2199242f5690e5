#include "src/metrics/slow_down.h"

#include <catch2/catch.hpp>

namespace annulus {

namespace {

constexpr std::size_t kSteps = 500;

// A whole epoch whose steps take the given milliseconds on each of two ranks.
EpochResult epoch(std::size_t number, double compute_ms, double optimizer_ms = 1, std::size_t steps = kSteps) {
  StepTimes times;
  times.steps = steps;
  times.seconds[StepTimes::compute] = 1e-3 * compute_ms * static_cast<double>(steps);
  times.seconds[StepTimes::optimizer] = 1e-3 * optimizer_ms * static_cast<double>(steps);
  EpochResult result;
  result.epoch = number;
  result.images = 100 * steps;
  result.steps = steps;
  result.accounts = {.ranks_in_job = {0, 1}, .ranks = {times, times}, .arrivals = {}, .staleness = {}};
  result.seconds = times.wall();
  return result;
}

}  // namespace

TEST_CASE("final epochs slower than the second are reported with the part that grew") {
  const std::vector epochs{epoch(1, 30, 1), epoch(2, 9, 1), epoch(3, 9, 2), epoch(4, 9, 3.5), epoch(5, 9, 5.5)};
  const auto found = find_slow_down(epochs);
  REQUIRE(found);
  CHECK(found->share == Approx(0.35));
  CHECK(found->part == StepTimes::optimizer);
  CHECK(found->line() == "the last 2 epochs took 35 % longer per step than epoch 2: optimizer 1.00 -> 4.50 ms");
}

TEST_CASE("a slow-down is reported in the summary and in results.json") {
  RunResult result;
  result.epochs = {epoch(1, 9), epoch(2, 9), epoch(3, 18), epoch(4, 18)};
  CHECK_THAT(summary(result), Catch::Contains("took 90 % longer per step than epoch 2: compute 9.00 -> 18.00 ms\n"));
  const nlohmann::json json = to_json(result)["slow_down"];
  CHECK(json["part"] == "compute");
  CHECK(json["reference_epoch"] == 2);
  CHECK(json["share"].get<double>() == Approx(0.9));

  result.epochs.pop_back();
  CHECK_THAT(summary(result), !Catch::Contains("longer per step"));
  CHECK(!to_json(result).contains("slow_down"));
}

TEST_CASE("a slow-down is reported only if it is significant") {
  const auto slow = [](const std::vector<EpochResult>& epochs) { return find_slow_down(epochs).has_value(); };
  CHECK(slow({epoch(1, 9), epoch(2, 9), epoch(3, 12), epoch(4, 12)}));
  CHECK(!slow({}));
  CHECK(!slow({epoch(1, 9), epoch(2, 9)}));
  SECTION("one busy epoch") {
    CHECK(!slow({epoch(1, 9), epoch(2, 9), epoch(3, 90), epoch(4, 9)}));
    CHECK(!slow({epoch(1, 9), epoch(2, 9), epoch(3, 9), epoch(4, 90)}));
  }
  SECTION("less than a tenth") {
    CHECK(!slow({epoch(1, 9), epoch(2, 9), epoch(3, 9.9), epoch(4, 9.9)}));
  }
  SECTION("a quick first epoch") {
    CHECK(!slow({epoch(1, 1), epoch(2, 9), epoch(3, 9), epoch(4, 9)}));
  }
  SECTION("an incomplete epoch") {
    CHECK(!slow({epoch(1, 9), epoch(2, 9), epoch(3, 12), epoch(4, 12, 1, kSteps / 2)}));
    CHECK(slow({epoch(4, 9, 1, kSteps / 2), epoch(5, 9), epoch(6, 12), epoch(7, 12)}));
  }
  SECTION("few or short steps") {
    CHECK(!slow({epoch(1, 900, 1, 3), epoch(2, 900, 1, 3), epoch(3, 1200, 1, 3), epoch(4, 1200, 1, 3)}));
    CHECK(!slow({epoch(1, .1, 0), epoch(2, .1, 0), epoch(3, .2, 0), epoch(4, .2, 0)}));
  }
}

}  // namespace annulus
