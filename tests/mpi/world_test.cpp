#include "collectives/world.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "kernels/error.h"

using namespace annulus;

TEST_CASE("a rank knows its place in the world and on its node") {
  const World world;
  const std::vector<std::uint64_t> ranks = world.gather(static_cast<std::uint64_t>(world.rank()));
  REQUIRE(ranks.size() == static_cast<std::size_t>(world.size()));
  for (std::size_t i = 0; i < ranks.size(); ++i) CHECK(ranks[i] == i);
  CHECK(world.root() == (world.rank() == 0));
  CHECK(world.local_size() >= 1);
  CHECK(world.local_size() <= world.size());
  CHECK(world.local_rank() < world.local_size());
}

TEST_CASE("the root's bytes reach every rank") {
  const World world;
  std::vector<std::byte> bytes(1001, std::byte(world.root() ? 42 : 0));
  world.broadcast(bytes);
  CHECK(bytes == std::vector<std::byte>(1001, std::byte{42}));
  world.broadcast({});
}

TEST_CASE("sums and maxima of the world") {
  const World world;
  const int n = world.size();
  std::array<std::int64_t, 2> counts = {world.rank(), std::int64_t{1} << 40};
  world.sum(counts);
  CHECK(counts[0] == n * (n - 1) / 2);
  CHECK(counts[1] == (std::int64_t{1} << 40) * n);
  std::array<double, 2> largest = {static_cast<double>(world.rank()), -1.0 - world.rank()};
  world.maximum(largest);
  CHECK(largest[0] == n - 1);
  CHECK(largest[1] == -1);
}

TEST_CASE("sums of double are the same to the bit on every rank") {
  const World world;
  std::vector<double> values(100);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<double>(i + 1000 * static_cast<std::size_t>(world.rank()))) / 3;
  world.sum(values);
  for (const double value : values) CHECK(world.gather(value) == std::vector(world.gather(value).size(), value));
}

TEST_CASE("MPI errors are returned, and say what happened and where") {
  const World world;
  const Communicator communicator = world.duplicate();
  CHECK_THROWS_WITH(check(MPI_Send(nullptr, 0, MPI_BYTE, world.size(), 0, communicator.handle())),
                    Catch::Contains("world_test.cpp") && Catch::Contains("rank"));
}

TEST_CASE("a count that MPI cannot express is refused") {
  CHECK(mpi_count(2147483647) == 2147483647);
  CHECK_THROWS_AS(mpi_count(2147483648), Error);
}
