#include "src/step/timeline.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

using namespace annulus;

TEST_CASE("a timeline holds all ranks' spans of the requested steps, on one clock") {
  const World world;
  const auto file = std::filesystem::temp_directory_path() / fmt::format("annulus-timeline-{}.json", getpid());
  const double offset = -100.0 * world.rank();  // as if every rank's clock were ahead
  Timeline timeline({.file = file, .steps = 2}, offset);
  timeline.claim(world);
  world.barrier();
  for (std::uint64_t number = 11; number <= 20; ++number) {
    timeline.begin_step(number);
    const TraceSpan step(timeline.step(), "step", TraceLane::kNone, now_seconds() - offset);
    const TraceSpan sum(timeline.all_reduce(), "sum", 3, now_seconds() - offset);
  }
  { const TraceSpan span(timeline.run(), "evaluation"); }
  CHECK_THAT(timeline.write(world), Catch::Contains("2 steps"));
  if (!world.root()) return;

  const auto events = nlohmann::json::parse(std::ifstream(file));
  std::filesystem::remove(file);
  std::vector<std::vector<std::uint64_t>> steps(static_cast<std::size_t>(world.size()));
  const double first =
      std::ranges::find_if(events, [](const auto& event) { return event["name"] == "step"; })->at("ts");
  for (const auto& event : events) {
    if (event["ph"] == "M") continue;
    CHECK(event["ph"] == "X");
    const auto rank = event["pid"].get<std::size_t>();
    REQUIRE(rank < steps.size());
    if (event["name"] == "evaluation") continue;
    CHECK(event["ts"] >= 0);
    CHECK(std::abs(event["ts"].get<double>() - first) < 30e6);  // one clock: the offsets of 100 s are gone
    if (event["name"] == "step")
      steps[rank].push_back(event["args"]["step"]);
    else
      CHECK(event["name"] == "sum 3");
  }
  for (const auto& of_rank : steps) CHECK(of_rank == std::vector<std::uint64_t>{16, 17});
}

TEST_CASE("without a file there is no timeline") {
  const World world;
  Timeline timeline({}, 0);
  timeline.claim(world);
  timeline.begin_step(1);
  CHECK(timeline.run() == nullptr);
  CHECK(timeline.step() == nullptr);
  CHECK(timeline.all_reduce() == nullptr);
  CHECK(timeline.write(world).empty());
}

TEST_CASE("a timeline that cannot be written is refused at start") {
  const World world;
  const Timeline timeline({.file = "/no/such/folder/timeline.json"}, 0);
  if (world.root()) CHECK_THROWS_AS(timeline.claim(world), Error);
}
