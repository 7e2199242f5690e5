#include "src/train/verification.h"

#include <catch2/catch.hpp>

using namespace annulus;

TEST_CASE("verifying is cheap if a step is long, and has many operations for each byte of gradients") {
  constexpr double kPeak = 5e11;
  CHECK(verifying_cost(1 << 20, 3e9, kPeak) > 0.01);     // short
  CHECK(verifying_cost(1 << 20, 1e12, kPeak) < 0.001);   // long
  CHECK(verifying_cost(400 << 20, 1e12, kPeak) > 0.01);  // many bytes
  CHECK(verifying_cost(0, 3e11, kPeak) == Approx(1e-4));
  CHECK(verifying_cost(8'000'000, 3e11, kPeak) == Approx(1.1e-3));
}
