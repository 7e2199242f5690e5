#include "collectives/ring/ring_schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <set>
#include <vector>

namespace annulus {

namespace {

// The ranks whose inputs each chunk on one rank contains.
using Shares = std::multiset<std::size_t>;
using Chunks = std::vector<Shares>;
using RingSteps = std::vector<RingStep>;

RingSteps listed(std::ranges::range auto schedule) {
  RingSteps steps;
  std::ranges::copy(schedule, std::back_inserter(steps));
  return steps;
}

// All ranks take each step simultaneously, on sets of rank numbers instead of arrays of numbers.
struct RingSimulation {
  explicit RingSimulation(std::size_t size) : ranks(size) {
    for (std::size_t rank = 0; rank < size; ++rank) ranks[rank] = Chunks(size, Shares{rank});
  }

  template <class Schedule, class Combine>
  void run(Schedule schedule, Combine combine) {
    const std::size_t size = ranks.size();
    for (std::size_t step = 0; step + 1 < size; ++step) {
      const std::vector<Chunks> before = ranks;
      for (std::size_t rank = 0; rank < size; ++rank) {
        const std::size_t previous = (rank + size - 1) % size;
        const RingStep mine = schedule(rank, size)[step];
        REQUIRE(mine.receive == schedule(previous, size)[step].send);
        combine(ranks[rank][mine.receive], before[previous][mine.receive]);
      }
    }
  }

  std::vector<Chunks> ranks;
};

}  // namespace

TEST_CASE("the schedule of four ranks is the one in ring.h") {
  CHECK(listed(reduce_scatter(0, 4)) == RingSteps{{0, 3}, {3, 2}, {2, 1}});
  CHECK(listed(all_gather(0, 4)) == RingSteps{{1, 0}, {0, 3}, {3, 2}});
  CHECK(listed(reduce_scatter(3, 4)) == RingSteps{{3, 2}, {2, 1}, {1, 0}});
}

TEST_CASE("the schedule is constexpr") {
  STATIC_REQUIRE(reduce_scatter(1, 4)[0] == RingStep{.send = 1, .receive = 0});
  STATIC_REQUIRE(all_gather(3, 4)[0] == RingStep{.send = 0, .receive = 3});
}

TEST_CASE("every rank's input is added exactly once and reaches every rank") {
  const auto size = GENERATE(as<std::size_t>{}, 1, 2, 3, 4, 5, 7, 16, 64);
  RingSimulation model(size);

  model.run([](auto rank, auto n) { return reduce_scatter(rank, n); },
            [](Shares& mine, const Shares& theirs) { mine.insert(theirs.begin(), theirs.end()); });
  Shares all;
  for (std::size_t rank = 0; rank < size; ++rank) all.insert(rank);
  for (std::size_t rank = 0; rank < size; ++rank) CHECK(model.ranks[rank][(rank + 1) % size] == all);

  model.run([](auto rank, auto n) { return all_gather(rank, n); },
            [](Shares& mine, const Shares& theirs) { mine = theirs; });
  CHECK(model.ranks == std::vector<Chunks>(size, Chunks(size, all)));
}

TEST_CASE("each step sends the chunk received in the previous step") {
  const auto size = GENERATE(as<std::size_t>{}, 2, 3, 7);
  for (std::size_t rank = 0; rank < size; ++rank) {
    RingSteps steps = listed(reduce_scatter(rank, size));
    std::ranges::copy(all_gather(rank, size), std::back_inserter(steps));
    REQUIRE(steps.size() == 2 * (size - 1));
    for (std::size_t i = 1; i < steps.size(); ++i) CHECK(steps[i].send == steps[i - 1].receive);
  }
}

}  // namespace annulus
