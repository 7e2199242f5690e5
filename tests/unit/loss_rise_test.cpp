#include "src/train/loss_rise.h"

#include <catch2/catch.hpp>
#include <vector>

namespace annulus {
namespace {

std::optional<LossRise> rise(const std::vector<double>& losses) {
  return loss_rise(losses);
}

}  // namespace

TEST_CASE("the rise of a loss is found once, and named with its factor") {
  const auto found = rise({0.8, 0.5, 0.6, 2.0});
  REQUIRE(found);
  CHECK(found->factor == Approx(4));
  CHECK(found->since == 1);
  CHECK_FALSE(rise({0.8, 0.5, 0.6, 2.0, 2.3}));  // it was named
  CHECK(rise({0.8, 0.5, 2.0, 0.7, 2.0}));
}

TEST_CASE("losses that fall, waver, or are small are no rise") {
  CHECK_FALSE(rise({}));
  CHECK_FALSE(rise({2.3}));
  CHECK_FALSE(rise({2.3, 1.0, 0.8, 0.9}));
  CHECK_FALSE(rise({0.5, 0.3, 0.59}));
  CHECK_FALSE(rise({0.8, 0.001, 0.01}));  // of a data set that is learned by heart
}

}  // namespace annulus
