#include "src/train/schedule.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/error_text.h"

namespace annulus {
namespace {

using Catch::Contains;

std::string complaint(const ScheduleOptions& options, std::size_t epochs = 90) {
  return test::error_of([&] { check(options, epochs); });
}

}  // namespace

TEST_CASE("a constant rate") {
  const Schedule schedule({.rate = 0.05}, 64, 3);
  for (const double epoch : {0.0, 0.5, 2.999, 3.0}) CHECK(schedule.rate(epoch) == 0.05f);
  CHECK(schedule.description() == "0.05");
}

TEST_CASE("Goyal et al.'s schedule: scaled, warmed up, decayed in steps") {
  const ScheduleOptions options{
      .rate = 0.1, .reference_batch = 256, .warmup = 5, .warmup_from = {}, .kind = "step", .steps = {30, 60, 80}};
  const Schedule schedule(options, 1024, 90);
  CHECK(schedule.description() ==
        "0.1 x 1024/256 = 0.4, warm-up 5 epochs from 0.1, then x 0.1 after epochs 30, 60, 80");
  for (const auto& [epoch, rate] : {std::pair{0.0, 0.1},
                                    {2.5, 0.25},
                                    {4.0, 0.34},
                                    {5.0, 0.4},
                                    {29.999, 0.4},
                                    {30.0, 0.04},
                                    {60.0, 0.004},
                                    {80.0, 0.0004},
                                    {90.0, 0.0004}})
    CHECK(schedule.rate(epoch) == Approx(rate).epsilon(1e-6));
  // A batch smaller than the reference has a smaller rate and no warm-up.
  const Schedule small(options, 64, 90);
  CHECK(small.rate(0) == 0.025f);
  CHECK(small.rate(7) == 0.025f);
  CHECK(Schedule(options, 257, 90).description().starts_with("0.1 x 257/256 = 0.100391, warm-up 5 epochs from 0.1,"));
}

TEST_CASE("cosine and polynomial decay to the end") {
  ScheduleOptions options{.rate = 2, .warmup = 2, .kind = "cosine", .end = 0.5};
  const Schedule cosine(options, 1, 10);
  CHECK(cosine.description() == "2, warm-up 2 epochs from 0, then cosine to 0.5 at epoch 10");
  for (const auto& [epoch, rate] : {std::pair{0.0, 0.0},
                                    {1.0, 1.0},
                                    {2.0, 2.0},
                                    {4.0, 1.25 + 0.75 * std::sqrt(0.5)},
                                    {6.0, 1.25},
                                    {10.0, 0.5},
                                    {11.0, 0.5}})
    CHECK(cosine.rate(epoch) == Approx(rate).epsilon(1e-6));
  options.kind = "polynomial";
  const Schedule polynomial(options, 1, 10);
  CHECK(polynomial.description() == "2, warm-up 2 epochs from 0, then to 0.5 at epoch 10 as (1 - x)^2");
  for (const auto& [epoch, rate] :
       {std::pair{2.0, 2.0}, {4.0, 0.5 + 1.5 * 0.5625}, {6.0, 0.875}, {10.0, 0.5}, {11.0, 0.5}})
    CHECK(polynomial.rate(epoch) == Approx(rate).epsilon(1e-6));
  options.power = 1;
  options.warmup = 0.5;
  options.warmup_from = 0.25;
  const Schedule linear(options, 1, 1);
  CHECK(linear.rate(0) == 0.5f);
  CHECK(linear.rate(0.25) == 1.25f);
  CHECK(linear.rate(0.75) == 1.25f);
}

TEST_CASE("contradictory schedules are refused") {
  CHECK_THAT(complaint({.kind = "step"}), Contains("--lr-steps 30,60,80"));
  for (const std::vector<double>& steps : {std::vector{30.0, 20.0}, {30.0, 30.0}, {0.0, 30.0}, {-1.0}})
    CHECK_THAT(complaint({.kind = "step", .steps = steps}), Contains("ascending"));
  CHECK_THAT(complaint({.kind = "cosine", .steps = {30}}), Contains("--lr-steps belongs to --schedule step"));
  CHECK_THAT(complaint({.kind = "step", .steps = {30}, .end = 0.1}), Contains("--lr-end belongs to"));
  CHECK_THAT(complaint({.warmup_from = 0.5}), Contains("--warmup-from requires --warmup"));
  CHECK_THAT(complaint({.warmup = 5, .kind = "cosine"}, 5), Contains("leaves none of the 5 epochs"));
  check({.warmup = 5, .warmup_from = 0.0, .kind = "cosine"}, 6);
  check({.warmup = 5}, 5);
  CHECK_THAT(complaint({.warmup = 5.5}, 5), Contains("longer than the 5 --epochs"));
  CHECK_THAT(complaint({.kind = "step", .steps = {30, 90}}), Contains("not all before the end, at 90"));
  CHECK_THAT(complaint({.kind = "cosine", .factor = 0.5}), Contains("--lr-factor belongs to"));
  CHECK_THAT(complaint({.kind = "cosine", .power = 1}), Contains("--lr-power belongs to"));
}

}  // namespace annulus
