#include "collectives/world/interruption.h"

#include <array>
#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("a loss interrupts at once, except in a round that can do without the rank") {
  Interruption interruption(3);
  const std::array dispensable{0, 1};
  interruption.begin_section(8, dispensable);
  CHECK(interruption.within_section());
  CHECK(interruption.section() == 8);
  interruption.lose(1);
  CHECK(interruption.lost(1));
  CHECK_FALSE(interruption.lost(0));
  SECTION("it interrupts when the round is complete") {
    CHECK_FALSE(interruption.interrupted());
    interruption.end_section();
    CHECK(interruption.interrupted());
    CHECK_FALSE(interruption.within_section());
    CHECK(interruption.section() == 8);
  }
  SECTION("the loss of a rank that is needed interrupts") {
    interruption.lose(2);
    CHECK(interruption.interrupted());
  }
  CHECK(interruption.lost(1));
  interruption.reset();
  CHECK_FALSE(interruption.interrupted());
  CHECK_FALSE(interruption.lost(1));
  CHECK_FALSE(interruption.within_section());
  interruption.lose(1);  // outside of a round every rank is needed
  CHECK(interruption.interrupted());
}

TEST_CASE("a round that can do without a lost rank can begin after the loss") {
  Interruption interruption(3);
  const int lost = GENERATE(1, 2);
  interruption.lose(static_cast<std::size_t>(lost));
  CHECK(interruption.interrupted());
  interruption.begin_section(8, std::array{0, 1});
  CHECK(interruption.interrupted() == (lost == 2));
  interruption.end_section();
  CHECK(interruption.interrupted());
}

TEST_CASE("a round without a loss interrupts nothing") {
  Interruption interruption(2);
  for (const std::uint64_t round : {1, 2}) {
    interruption.begin_section(round, std::array{0});
    interruption.end_section();
    CHECK_FALSE(interruption.interrupted());
  }
}

}  // namespace annulus
