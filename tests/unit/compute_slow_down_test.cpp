#include "src/bench/compute_slow_down.h"

#include <catch2/catch.hpp>
#include <vector>

namespace annulus {
namespace {

// 2 steps in each turn; in the second one computing takes `percent` longer beside the all-reduce than alone.
std::string text(const std::vector<double>& percents) {
  std::vector<double> alone, beside;
  for (std::size_t turn = 0; turn < percents.size(); ++turn) {
    const double drift = 1 + 0.5 * static_cast<double>(turn % 2);  // the same for both
    for (int step = 0; step < 2; ++step) {
      alone.push_back(drift / 1e3);
      beside.push_back(drift * (1 + percents[turn] / 100) / 1e3);
    }
  }
  return compute_slow_down(alone, beside, 2, "ring");
}

TEST_CASE("a slow-down of computing has an interval over turns") {
  CHECK(text({2, 4, 3, 1, 5, 6}) == "compute 1.000 -> 1.050 ms beside ring: 3.0 % slower [1.0, 6.0]");
  // With 9 turns the second smallest and the second largest enclose the median with 96 %.
  CHECK(text({-9, -2, -3, -4, -5, -6, -7, -8, 50}) == "compute 1.000 -> 1.380 ms beside ring: 5.0 % faster [2.0, 8.0]");
}

TEST_CASE("a slow-down of computing is not significant if the interval contains 0") {
  CHECK(text({50, -1, 50, 50, 50, 50}) ==
        "compute 1.000 -> 1.500 ms beside ring: no significant difference [-1.0, 50.0]");
}

TEST_CASE("a slow-down of computing is not reported from few turns") {
  for (const std::size_t turns : {1, 5})
    CHECK(text(std::vector(turns, 50.0)) ==
          "compute 1.000 -> 1.500 ms beside ring: too few turns to compare, raise --seconds");
}

TEST_CASE("a slow-down of computing from many turns has a narrow interval") {
  std::vector<double> percents(10001);
  for (std::size_t i = 0; i < percents.size(); ++i) percents[i] = static_cast<double>(i) / 100;
  // 5000 -+ 1.96 x 50 of 10,001.
  CHECK(text(percents).find("50.0 % slower [49.0, 51.0]") != std::string::npos);
}

}  // namespace
}  // namespace annulus
