#include "collectives/world/aligned_clock.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace annulus;

TEST_CASE("ranks of one node have the same clock") {
  const World world;
  const double offset = clock_offset_to_root(world);
  if (world.root() || world.local_size() == world.size()) CHECK(offset == 0);
}

// The tolerance is half a round trip, which is long if ranks outnumber cores.
TEST_CASE("the offset of another rank's clock is measured") {
  const World world;
  const double offset = measured_clock_offset(world, world.rank() % 2 == 1);
  if (world.rank() % 2 == 0) CHECK(offset == 0);
  if (world.local_size() == world.size()) CHECK(std::abs(offset) < 0.1);
}
