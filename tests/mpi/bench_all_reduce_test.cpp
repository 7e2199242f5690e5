#include "src/bench/bench_all_reduce.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"

using namespace annulus;

TEST_CASE("the benchmark writes a row for every size and algorithm") {
  const World world;
  const auto path = std::filesystem::temp_directory_path() / fmt::format("annulus-bench-{}.json", getpid());
  bench_all_reduce(world, {.sizes_bytes = {4, 40'000}, .algorithms = {"ring", "mpi"}, .seconds = 0.001, .json = path});
  if (!world.root()) return;
  const auto json = nlohmann::json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  CHECK(json["machine"]["ranks"] == world.size());
  REQUIRE(json["rows"].size() == 4);
  const auto& row = json["rows"][2];
  CHECK(row["algorithm"] == "ring");
  CHECK(row["bytes"] == 40'000);
  CHECK(row["ranks"] == world.size());
  CHECK(row["iterations"] >= 3);
  CHECK(row["min_seconds"] <= row["median_seconds"]);
  CHECK(row["algbw_bytes_per_second"].get<double>() == Approx(40'000 / row["median_seconds"].get<double>()));
  CHECK(row["busbw_bytes_per_second"].get<double>() ==
        Approx(row["algbw_bytes_per_second"].get<double>() * 2 * (world.size() - 1) / world.size()));
}

TEST_CASE("the benchmark refuses sizes that are not a multiple of 4 bytes") {
  const World world;
  CHECK_THROWS_AS(bench_all_reduce(world, {.sizes_bytes = {6}, .algorithms = {"ring"}}), Error);
}
