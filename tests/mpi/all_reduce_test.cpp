#include "collectives/all_reduce.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string_view>

#include "kernels/error.h"
#include "kernels/split.h"

using namespace annulus;

// One specification for every algorithm.

namespace {

std::vector<float> integers(std::size_t count, int rank) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 31) % 1009 + static_cast<unsigned>(rank));
  return values;
}

std::vector<float> exact_sum(std::size_t count, int size) {
  std::vector<float> sum(count);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> share = integers(count, rank);
    for (std::size_t i = 0; i < count; ++i) sum[i] += share[i];
  }
  return sum;
}

std::uint64_t hash(const std::vector<float>& values) {
  const auto* bytes = reinterpret_cast<const char*>(values.data());
  return std::hash<std::string_view>()({bytes, values.size() * sizeof(float)});
}

std::set<std::size_t> sizes_for(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return {0, 1, n - 1, n, n + 1, 997, 10'007, 262'144 + 1};
}

}  // namespace

TEST_CASE("arrays of any size are summed exactly") {
  const World world;
  const std::string algorithm = GENERATE("ring", "mpi");
  const auto all_reduce = make_all_reduce(algorithm, world);
  for (const std::size_t count : sizes_for(world.size())) {
    CAPTURE(algorithm, count);
    std::vector<float> values = integers(count, world.rank());
    all_reduce->wait(all_reduce->enqueue(values));
    CHECK(values == exact_sum(count, world.size()));
  }
}

TEST_CASE("several arrays are under way at once, and each is waited for by itself") {
  const World world;
  const std::string algorithm = GENERATE("ring", "mpi");
  const auto all_reduce = make_all_reduce(algorithm, world);
  const std::vector<std::size_t> counts = {10'007, 1, 300'000, 0, 997, 65'536};
  for (int step = 0; step < 3; ++step) {
    std::vector<std::vector<float>> arrays;
    for (const std::size_t count : counts) arrays.push_back(integers(count, world.rank()));
    std::vector<AllReduce::Ticket> tickets;
    for (auto& array : arrays) tickets.push_back(all_reduce->enqueue(array));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      CAPTURE(algorithm, step, i);
      all_reduce->wait(tickets[i]);
      CHECK(arrays[i] == exact_sum(counts[i], world.size()));
    }
  }
}

TEST_CASE("waiting for the last array is waiting for all") {
  const World world;
  const std::string algorithm = GENERATE("ring", "mpi");
  const auto all_reduce = make_all_reduce(algorithm, world);
  std::vector<float> large = integers(100'000, world.rank());
  std::vector<float> small = integers(10, world.rank());
  all_reduce->enqueue(large);
  all_reduce->wait(all_reduce->enqueue(small));
  CHECK(large == exact_sum(100'000, world.size()));
  CHECK(small == exact_sum(10, world.size()));
}

TEST_CASE("two all-reduces at work at once do not mix up their messages") {
  const World world;
  const auto one = make_all_reduce("ring", world);
  const auto other = make_all_reduce("mpi", world);
  std::vector<float> first = integers(50'000, world.rank());
  std::vector<float> second = integers(40'000, world.rank());
  const AllReduce::Ticket first_ticket = one->enqueue(first);
  const AllReduce::Ticket second_ticket = other->enqueue(second);
  world.barrier();  // and the main thread's messages go their own way too
  other->wait(second_ticket);
  one->wait(first_ticket);
  CHECK(first == exact_sum(50'000, world.size()));
  CHECK(second == exact_sum(40'000, world.size()));
}

TEST_CASE("sums that round are the same to the bit on every rank") {
  const World world;
  const std::string algorithm = GENERATE("ring", "mpi");
  const auto all_reduce = make_all_reduce(algorithm, world);
  for (const std::size_t count : {std::size_t{997}, std::size_t{300'007}}) {
    std::vector<float> values = integers(count, world.rank());
    for (float& value : values) value = std::sin(value) / 3;
    all_reduce->wait(all_reduce->enqueue(values));
    const std::uint64_t mine = hash(values);
    CHECK(world.gather(mine) == std::vector(static_cast<std::size_t>(world.size()), mine));
  }
}

TEST_CASE("the ring sends 2(N-1)/N of an array") {
  const World world;
  const auto all_reduce = make_all_reduce("ring", world);
  const auto n = static_cast<std::size_t>(world.size());
  std::vector<float> values(1000 * n);
  all_reduce->wait(all_reduce->enqueue(values));
  CHECK(all_reduce->bytes_sent() == 2 * (n - 1) * 1000 * sizeof(float));
}

TEST_CASE("an algorithm that does not exist is refused with the ones that do") {
  const World world;
  CHECK_THROWS_WITH(make_all_reduce("tree", world),
                    Catch::Contains("'tree'") && Catch::Contains("ring") && Catch::Contains("mpi"));
}

TEST_CASE("sums that nobody waits for do not keep a rank from leaving") {
  const World world;
  std::vector<float> values(1'000'000);
  const auto all_reduce = make_all_reduce("ring", world);
  if (world.root()) all_reduce->enqueue(values);
}
