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

// The rates of PyTorch 2.15.
TEST_CASE("one cycle") {
  // OneCycleLR(max_lr=0.4, total_steps=21, pct_start=0.3): the peak is at step 0.3 x 21 - 1, the end at step 20.
  const Schedule schedule({.rate = 0.4, .warmup = 5.3, .kind = "one-cycle", .end = 1.6e-6}, 1, 20);
  for (const auto& [step, rate] : {std::pair{0, 0.016},
                                   {1, 0.0487541084},
                                   {3, 0.247547895},
                                   {5, 0.396972271},
                                   {6, 0.397766174},
                                   {13, 0.185054841},
                                   {19, 0.00455158251},
                                   {20, 1.6e-06}})
    CHECK(schedule.rate(step) == Approx(rate).epsilon(1e-6));
  CHECK(Schedule({.rate = 0.4, .kind = "one-cycle"}, 1, 10).description() ==
        "0.4, warm-up 3 epochs along a cosine from 0.016, then cosine to 0 at epoch 10");
}

TEST_CASE("cycles") {
  // CyclicLR(base_lr=0.01, max_lr=0.4, step_size_up=4).
  const Schedule schedule({.rate = 0.4, .kind = "cyclic", .end = 0.01, .cycle = 8}, 1, 20);
  const std::vector<double> rates{0.01, 0.1075, 0.205, 0.3025, 0.4, 0.3025, 0.205, 0.1075, 0.01, 0.1075};
  for (std::size_t step = 0; step < rates.size(); ++step)
    CHECK(schedule.rate(static_cast<double>(step)) == Approx(rates[step]).epsilon(1e-6));
  CHECK(schedule.description() == "0.4, rising from 0.01 and falling back every 8 epochs");
}

TEST_CASE("the rate is reduced on a plateau") {
  // ReduceLROnPlateau(factor=0.5, patience=2, min_lr=0.06), with each evaluation's distance from the best one.
  const Schedule schedule({.rate = 0.4, .kind = "plateau", .factor = 0.5, .end = 0.06, .patience = 2}, 1, 20);
  const std::vector<std::uint64_t> since_best{0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1};
  const std::vector<double> rates{0.4, 0.4, 0.4,  0.4,  0.2,  0.2,  0.2,  0.2, 0.1,
                                  0.1, 0.1, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06};
  std::uint64_t reductions = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    reductions += schedule.reduces(since_best[i]) ? 1 : 0;
    CHECK(schedule.rate(static_cast<double>(i), reductions) == Approx(rates[i]).epsilon(1e-6));
  }
  CHECK(schedule.description() == "0.4, x 0.5 whenever more than 2 evaluations are not the best, down to 0.06");
  CHECK_FALSE(Schedule({.rate = 0.4}, 1, 1).reduces(3));
}

TEST_CASE("contradictory schedules are refused") {
  CHECK_THAT(complaint({.kind = "step"}), Contains("such as step:30,60,80"));
  for (const std::vector<double>& steps : {std::vector{30.0, 20.0}, {30.0, 30.0}, {0.0, 30.0}, {-1.0}})
    CHECK_THAT(complaint({.kind = "step", .steps = steps}), Contains("ascending"));
  CHECK_THAT(complaint({.kind = "step", .steps = {30}, .end = 0.1}),
             Contains("--lr-end does not belong to --schedule step"));
  CHECK_THAT(complaint({.warmup_from = 0.5}), Contains("--warmup 0:0.5 has no warm-up"));
  CHECK_THAT(complaint({.warmup = 5, .kind = "cosine"}, 5), Contains("leaves none of the 5 epochs"));
  check({.warmup = 5, .warmup_from = 0.0, .kind = "cosine"}, 6);
  check({.warmup = 5}, 5);
  CHECK_THAT(complaint({.warmup = 5.5}, 5), Contains("longer than the 5 --epochs"));
  CHECK_THAT(complaint({.kind = "step", .steps = {30, 90}}), Contains("not all before the end, at 90"));
  CHECK_THAT(complaint({.kind = "cosine", .factor = 0.5}), Contains("--lr-factor belongs to"));
  CHECK_THAT(complaint({.kind = "cyclic"}), Contains("such as cyclic:4"));
  CHECK_THAT(complaint({.warmup = 1, .kind = "cyclic", .cycle = 4}), Contains("remove --warmup"));
  CHECK_THAT(complaint({.kind = "plateau", .factor = 1}), Contains("below 1"));
}

}  // namespace annulus
