#include "src/train/combinations.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/test_file.h"
#include "tests/unit/error_text.h"

namespace annulus {
namespace {

// Options that survive with shards, on CPUs.
TrainOptions surviving(const StrategyOptions& strategy) {
  TrainOptions options;
  options.strategy = strategy;
  options.survival.on = true;
  options.shards = 4;
  return options;
}

std::string refusal(const TrainOptions& options) {
  return test::error_of([&] { check_combinations(options); });
}

}  // namespace

TEST_CASE("the page of combinations is the table that refuses") {
  const std::string file = test::test_file("../src/train/combinations.md");
  // To write the page: ANNULUS_WRITE_PAGES=1 annulus_unit_tests "the page of combinations*"
  if (std::getenv("ANNULUS_WRITE_PAGES") != nullptr) std::ofstream(file) << combinations_page();
  std::ifstream stream(file);
  std::ostringstream page;
  page << stream.rdbuf();
  CHECK(page.str() == combinations_page());
}

TEST_CASE("a strategy refuses what it does not support, and names those that do") {
  CHECK_NOTHROW(check_combinations(surviving(Synchronous{})));
  CHECK(refusal(surviving(Sharded{})) ==
        "--strategy sharded does not support --shards, because a sum of shards in a tree has no reduce-scatter: remove "
        "it, or use --strategy synchronous");
  TrainOptions options = surviving(Local{});
  options.shards = 0;
  CHECK_NOTHROW(check_combinations(options));
  options.strategy = Synchronous{};
  CHECK(refusal(options) ==
        "--strategy synchronous does not support --survive without --shards, because results would depend on the "
        "number of ranks: add --shards N, or use --strategy local or async");
}

TEST_CASE("two features that exclude each other are refused with any strategy") {
  TrainOptions options = surviving(Synchronous{});
  options.wire = "bf16";
  CHECK(refusal(options) == "--shards does not go with --wire, because it sums in an order of its own: remove --wire");
  options = {};
  options.buckets.deferred = 0.5;
  options.clip_norm = 1;
  CHECK(refusal(options) ==
        "--defer does not go with --clip-norm, because the update needs all gradients of a step, and some are "
        "deferred: remove one of them");
}

TEST_CASE("an option of another strategy is refused") {
  StrategyChoice choice;
  choice.name = "local";
  choice.servers = 1;
  CHECK(test::error_of([&] { check_own_options(choice); }) ==
        "--servers belongs to --strategy async, and this is local");
  choice = {};
  choice.pipeline = 2;
  CHECK(std::holds_alternative<Pipeline>(make_strategy(choice)));
  choice.name = "sharded";
  CHECK(test::error_of([&] { make_strategy(choice); }) ==
        "--pipeline does not support --strategy sharded, because this is not implemented yet: remove one of them");
}

}  // namespace annulus
