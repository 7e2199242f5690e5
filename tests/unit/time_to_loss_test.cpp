#include "src/scaling/time_to_loss.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <vector>

#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {

TEST_CASE("larger batches need fewer steps, but not in proportion") {
  const MeasuredNoise noise{.scale = 96, .low = 32, .high = 224};
  const StepOfRanks one{1, 32, 2}, four{4, 128, 2.5}, many{1000, 32000, 3};
  CHECK(loss_speedup(noise, one, one).factor == 1);
  // 2 s (1 + 96/32) against 2.5 s (1 + 96/128)
  const LossSpeedup found = loss_speedup(noise, one, four);
  CHECK(found.factor == Approx(8 / 4.375));
  CHECK(found.low == Approx(4 / 3.125));
  CHECK(found.high == Approx(16 / 6.875));
  CHECK(loss_speedup(noise, one, many).factor == Approx(8 / 3.009));
  // With the same batch (strong scaling), only the time of a step counts.
  CHECK(loss_speedup(noise, one, {2, 32, 1}).high == Approx(2));
}

TEST_CASE("ranks are worth it until the others gain less than 5 %") {
  const MeasuredNoise noise{.scale = 96, .low = 96, .high = 96};
  std::vector<StepOfRanks> steps;
  for (std::size_t ranks = 1; ranks <= 1024; ranks *= 2) steps.push_back({ranks, 32 * ranks, 1.0});
  // 1 + 3/N: with 64 ranks 1.047, with 1024 1.003, 4.2 % less; with 32 ranks 1.094
  CHECK(ranks_worth(noise, steps) == 64);
  CHECK(ranks_worth(noise, std::span(steps).first(3)) == 4);
  steps[2].seconds = 0.1;  // the best, and later ones are slower
  CHECK(ranks_worth(noise, steps) == 4);
}

TEST_CASE("the noise is read from a run's results") {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "results.json";
  const auto write = [&](const char* text) { std::ofstream(file) << text; };
  write(R"({"gradient_noise": {"scale": 5, "low": 4, "high": 7}})");
  const MeasuredNoise noise = read_noise(file);
  CHECK((noise.scale == 5 && noise.low == 4 && noise.high == 7));
  write(R"({"gradient_noise": {"scale": 5}})");
  CHECK((read_noise(file).low == 5 && read_noise(file).high == 5));
  write(R"({"status": "complete"})");
  CHECK_THAT(test::error_of([&] { read_noise(file); }), Catch::Contains("has no gradient noise"));
  for (const char* bad : {R"({"gradient_noise": {"scale": -5}})", R"({"gradient_noise": {"low": 5}})"}) {
    write(bad);
    CHECK_THAT(test::error_of([&] { read_noise(file); }), Catch::Contains("not the gradient noise of a run"));
  }
}

}  // namespace annulus
