#include "src/train/strategy_options.h"

#include <catch2/catch.hpp>

#include "tests/unit/error_text.h"

namespace annulus {

TEST_CASE("the length of a round is a number of steps or a time") {
  CHECK(to_string(parse_round("20")) == "20 steps");
  CHECK(to_string(parse_round("2s")) == "2 s");
  CHECK(to_string(parse_round("1.5min")) == "90 s");
  for (const char* text : {"1epoch", "end"})
    CHECK_THAT(test::error_of([&] { parse_round(text); }), Catch::Contains("is not the length of a round"));
}

}  // namespace annulus
