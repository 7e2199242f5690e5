#include "src/bench/bench_all_reduce.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "src/bench/bench_links.h"
#include "src/bench/wrong_elements.h"
#include "tests/unit/error_text.h"

using namespace annulus;

namespace {

// An all-reduce that adds 1 to elements of the result on the last rank.
class WrongAllReduce final : public AllReduce {
 public:
  WrongAllReduce(const World& world, Device& device, std::vector<std::size_t> elements)
      : AllReduce({.description = "wrong", .order = "ring", .all_verbs = true}),
        all_reduce_(make_all_reduce("ring", world, device)),
        elements_(world.rank() + 1 == world.size() ? std::move(elements) : std::vector<std::size_t>()) {}

  DeviceView allocate(std::size_t bytes, Memory memory) override { return all_reduce_->allocate(bytes, memory); }
  Ticket enqueue(DeviceView values, const Request& request) override {
    const Ticket ticket = all_reduce_->enqueue(values, request);
    all_reduce_->wait(ticket);
    const std::span floats(reinterpret_cast<float*>(values.address), values.bytes / sizeof(float));
    for (const std::size_t element : elements_)
      if (element < floats.size()) floats[element] += 1;
    return ticket;
  }
  Range chunk(std::size_t count) const override { return all_reduce_->chunk(count); }
  void wait(Ticket) override {}

 private:
  std::unique_ptr<AllReduce> all_reduce_;
  std::vector<std::size_t> elements_;
};

const auto cpu = make_device("cpu", 1);

}  // namespace

TEST_CASE("the benchmark counts wrong elements of every verb") {
  const World world;
  constexpr std::size_t kCount = 3001;
  WrongAllReduce wrong(world, *cpu, {0, 1500, kCount - 1});
  const DeviceView array = wrong.allocate(kCount * sizeof(float), Memory::own);
  const Range own = wrong.chunk(kCount);
  const std::size_t last_own = world.gather(std::uint64_t{own.begin}).back();
  const std::size_t last_size = world.gather(std::uint64_t{own.size()}).back();
  std::size_t in_chunk = 0;
  for (const std::size_t element : {std::size_t{0}, std::size_t{1500}, kCount - 1})
    in_chunk += element >= last_own && element < last_own + last_size ? 1 : 0;
  for (const MeasuredVerb verb : {MeasuredVerb::all_reduce, MeasuredVerb::reduce_scatter, MeasuredVerb::all_gather}) {
    CAPTURE(static_cast<int>(verb));
    const WrongElements found = wrong_elements(world, *cpu, wrong, verb, array);
    CHECK(found.count == (verb == MeasuredVerb::reduce_scatter ? in_chunk : 3));
    CHECK(found.first.empty() == (world.rank() + 1 < world.size() || found.count == 0));
    for (const WireType wire : {WireType::fp32, WireType::bf16}) {
      const auto exact = make_all_reduce("message-ring", world, *cpu, wire);
      CHECK(wrong_elements(world, *cpu, *exact, verb, exact->allocate(kCount * sizeof(float))).count == 0);
    }
  }
}

TEST_CASE("the benchmark ends with an error if elements are wrong") {
  const World world;
  std::vector<NamedAllReduce> all_reduces;
  all_reduces.push_back({"exact", make_all_reduce("ring", world, *cpu)});
  all_reduces.push_back({"wrong", std::make_unique<WrongAllReduce>(world, *cpu, std::vector<std::size_t>{2000})});
  const BenchAllReduceOptions options{.sizes_bytes = {4000, 12'000}, .algorithms = {}, .seconds = 0.001};
  const std::string error = test::error_of([&] { time_all_reduces(world, *cpu, std::move(all_reduces), options); });
  const int shares = world.size() * (world.size() - 1) / 2, sum = world.size() * (2000 - 1021) + shares;
  CHECK_THAT(error, Catch::Contains(fmt::format("wrong: element 2000 of 3000 is {} instead of {} on rank {}", sum + 1,
                                                sum, world.size() - 1)));
}

TEST_CASE("the benchmark of links has a time for each pair of ranks") {
  const World world;
  const auto path = std::filesystem::temp_directory_path() / fmt::format("annulus-links-{}.json", getpid());
  const BenchLinksOptions options{.bytes = 1000, .seconds = 0.001, .json = path};
  if (world.size() == 1) {
    CHECK_THAT(test::error_of([&] { bench_links(world, options); }), Catch::Contains("there is only one"));
    return;
  }
  bench_links(world, options);
  if (!world.root()) return;
  const auto json = nlohmann::json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  CHECK(json["hosts"].size() == static_cast<std::size_t>(world.size()));
  for (const char* name : {"latency_seconds", "bandwidth_bytes_per_second"})
    for (int row = 0; row < world.size(); ++row)
      for (int column = 0; column < world.size(); ++column) {
        CAPTURE(name, row, column);
        const auto& value = json[name][row][column];
        CHECK(value == json[name][column][row]);
        CHECK((row == column ? value.is_null() : value > 0));
      }
}

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
  CHECK(row["wrong_elements"] == 0);
  CHECK(row["fastest_rank_seconds"] <= row["slowest_rank_seconds"]);
  CHECK(row["slowest_rank_seconds"] <= row["median_seconds"]);
  CHECK(row["min_seconds"] <= row["median_seconds"]);
  CHECK(row["algbw_bytes_per_second"].get<double>() == Approx(40'000 / row["median_seconds"].get<double>()));
  CHECK(row["busbw_bytes_per_second"].get<double>() ==
        Approx(row["algbw_bytes_per_second"].get<double>() * 2 * (world.size() - 1) / world.size()));
}

TEST_CASE("the benchmark refuses sizes that are not a multiple of 4 bytes") {
  const World world;
  CHECK_THROWS_AS(bench_all_reduce(world, {.sizes_bytes = {6}, .algorithms = {"ring"}}), Error);
}

TEST_CASE("the benchmark times other verbs, whose ranks send half as much") {
  const World world;
  const auto path = std::filesystem::temp_directory_path() / fmt::format("annulus-bench-{}.json", getpid());
  const std::string verb = GENERATE("reduce-scatter", "all-gather");
  BenchAllReduceOptions options{
      .sizes_bytes = {4000}, .algorithms = {"ring"}, .verb = verb, .seconds = 0.001, .json = path};
  bench_all_reduce(world, options);
  if (world.root()) {
    const auto json = nlohmann::json::parse(std::ifstream(path));
    std::filesystem::remove(path);
    CHECK(json["verb"] == verb);
    const auto& row = json["rows"][0];
    CHECK(row["wrong_elements"] == 0);
    CHECK(row["busbw_bytes_per_second"].get<double>() ==
          Approx(row["algbw_bytes_per_second"].get<double>() * (world.size() - 1) / world.size()));
    CHECK(json["average_busbw_bytes_per_second"]["ring"] == row["busbw_bytes_per_second"]);
  }
  options.algorithms = {"mpi"};
  if (world.size() > 1)
    CHECK_THAT(test::error_of([&] { bench_all_reduce(world, options); }),
               Catch::Contains("--algorithms mpi has no " + verb));
}

TEST_CASE("the benchmark times broadcasts from rank 0 by MPI") {
  const World world;
  const auto path = std::filesystem::temp_directory_path() / fmt::format("annulus-bench-{}.json", getpid());
  BenchAllReduceOptions options{
      .sizes_bytes = {4000}, .algorithms = {"mpi"}, .verb = "broadcast", .seconds = 0.001, .json = path};
  bench_all_reduce(world, options);
  if (world.root()) {
    const auto row = nlohmann::json::parse(std::ifstream(path))["rows"][0];
    std::filesystem::remove(path);
    CHECK(row["wrong_elements"] == 0);
    CHECK(row["busbw_bytes_per_second"] == row["algbw_bytes_per_second"]);
  }
  WrongAllReduce left_alone(world, *cpu, {});
  const DeviceView array = left_alone.allocate(4000, Memory::own);
  if (world.size() > 1) CHECK(wrong_elements(world, *cpu, left_alone, MeasuredVerb::broadcast, array).count > 0);
  options.algorithms = {"ring"};
  CHECK_THAT(test::error_of([&] { bench_all_reduce(world, options); }),
             Catch::Contains("--algorithms ring has no broadcast: mpi has"));
}
