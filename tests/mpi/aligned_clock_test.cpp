#include "collectives/aligned_clock.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace annulus;

TEST_CASE("ranks of one node read the same clock") {
  const World world;
  const double offset = clock_offset_to_root(world);
  if (world.root()) CHECK(offset == 0);
  if (world.local_size() == world.size()) CHECK(std::abs(offset) < 1e-3);
}
