#include "src/train/round_pace.h"

#include <array>
#include <catch2/catch.hpp>

namespace annulus {
namespace {

using Updates = std::vector<std::size_t>;

void add(Pace& pace, std::array<double, 3> updates, std::array<double, 3> seconds) {
  pace.add(updates, seconds);
}

}  // namespace

TEST_CASE("ranks make the updates that they complete in a round's time, and at least one", "[pace]") {
  Pace pace(2, 3);
  CHECK(pace.plan() == Updates{1, 1, 1});
  add(pace, {1, 1, 1}, {0.1, 0.35, 0.5});
  CHECK(pace.plan() == Updates{20, 5, 4});
}

TEST_CASE("a round is a whole number of the slowest rank's updates", "[pace]") {
  Pace pace(2, 3);
  add(pace, {20, 4, 4}, {1, 2, 2.2});  // 0.55 seconds: 4 updates in 2.2 seconds
  CHECK(pace.plan() == Updates{44, 4, 4});
}

TEST_CASE("if the slowest rank has one update, the others go on until it is complete, up to twice the time", "[pace]") {
  Pace pace(2, 3);
  add(pace, {1, 1, 1}, {0.1, 0.35, 3});
  CHECK(pace.plan() == Updates{30, 8, 1});
  Pace stopped(2, 3);
  add(stopped, {1, 1, 1}, {0.1, 0.35, 60});
  CHECK(stopped.plan() == Updates{40, 11, 1});
}

TEST_CASE("the last rounds count most, and short ones little", "[pace]") {
  Pace pace(2, 3);
  add(pace, {20, 20, 20}, {2, 2, 2});
  add(pace, {20, 1, 0}, {4, 1, 0});  // half as fast; a short round; nothing to do at an epoch's end
  CHECK(pace.plan() == Updates{12, 11, 20});
}

TEST_CASE("a rank that begins to be slow gets its share within some rounds", "[pace]") {
  Pace pace(1, 3);
  const std::array speeds{100.0, 50.0, 10.0};
  for (int round = 0; round < 12; ++round) {
    std::array<double, 3> updates{}, seconds{};
    for (std::size_t rank = 0; rank < 3; ++rank) {
      updates[rank] = static_cast<double>(pace.plan()[rank]);
      seconds[rank] = updates[rank] / (round < 4 && rank == 2 ? 100 : speeds[rank]);
    }
    pace.add(updates, seconds);
  }
  // 10 of its updates, as measured over all rounds, take nearly a second.
  CHECK(pace.plan() == Updates{97, 48, 10});
}

}  // namespace annulus
