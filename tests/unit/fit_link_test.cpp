#include "src/scaling/fit_link.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "src/metrics/results.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {

namespace {

constexpr RingOptions kOptions = message_ring_options(false);

std::vector<RingTime> times_on(const LinkModel& link, std::size_t ranks, WireType wire = WireType::fp32) {
  std::vector<RingTime> times;
  for (std::size_t bytes = 4096; bytes <= (64 << 20); bytes *= 8)
    times.push_back({bytes, ring_seconds({&link, 1}, ranks, bytes, kOptions, wire)});
  return times;
}

nlohmann::json benchmark(const std::string& algorithm, std::span<const RingTime> times, std::size_t ranks,
                         std::size_t on_node) {
  nlohmann::json json{{"machine", {{"ranks", ranks}, {"ranks_on_root_node", on_node}}}, {"wire", "fp32"}};
  const auto add = [&json](const std::string& name, const RingTime& time) {
    json["rows"].push_back({{"algorithm", name}, {"bytes", time.bytes}, {"median_seconds", time.seconds}});
  };
  add("mpi", {4096, 1});
  for (const RingTime& time : times) add(algorithm, time);
  return json;
}

}  // namespace

TEST_CASE("fitting recovers a link's parameters from ring all-reduce times") {
  const auto ranks = GENERATE(as<std::size_t>{}, 2, 4, 7, 64);
  const auto wire = GENERATE(WireType::fp32, WireType::bf16);
  const LinkModel link = GENERATE(LinkModel{20e-6, 1.25e9}, LinkModel{1e-6, 8e9}, LinkModel{1e-3, 6e6});
  const LinkFit fit = fit_link(times_on(link, ranks, wire), ranks, kOptions, wire);
  CHECK(fit.link.latency_seconds == Approx(link.latency_seconds).epsilon(1e-6));
  CHECK(fit.link.bytes_per_second == Approx(link.bytes_per_second).epsilon(1e-6));
  CHECK(fit.residual < 1e-6);
}

TEST_CASE("the residual measures the distance to the fitted model") {
  const LinkModel link{20e-6, 1.25e9};
  std::vector<RingTime> times = times_on(link, 4);
  for (std::size_t i = 0; i < times.size(); ++i) times[i].seconds *= i % 2 == 0 ? 1.1 : 0.9;
  const LinkFit fit = fit_link(times, 4, kOptions, WireType::fp32);
  CHECK(fit.residual > 0.05);
  CHECK(fit.residual < 0.101);
  CHECK(fit.link.bytes_per_second == Approx(link.bytes_per_second).epsilon(0.15));
}

TEST_CASE("the fitted latency is never negative; times that do not grow are refused") {
  const std::vector<RingTime> growing{{4096, 1e-6}, {1 << 20, 1e-3}};
  CHECK(fit_link(growing, 2, kOptions, WireType::fp32).link.latency_seconds == 0);
  const std::vector<RingTime> shrinking{{64, 2e-3}, {1024, 1e-3}};
  CHECK_THAT(test::error_of([&] { fit_link(shrinking, 2, kOptions, WireType::fp32); }), Catch::Contains("bandwidth"));
}

TEST_CASE("the link is fitted to the benchmark's ring rows") {
  const test::TemporaryFolder folder;
  const auto file = folder / "all_reduce.json";
  const LinkModel link{20e-6, 1.25e9};
  for (const std::string algorithm : {"message-ring", "ring"}) {
    write_json(file, FileKind::all_reduce_benchmark, benchmark(algorithm, times_on(link, 4), 4, 1));
    const MeasuredLink measured = fit_link(file);
    CHECK(measured.fit.link.latency_seconds == Approx(20e-6));
    CHECK(measured.ranks == 4);
    CHECK(!measured.one_node);
    CHECK(measured.source == "fitted to " + algorithm + " of 4 ranks, 5 sizes, in all_reduce.json");
    write_json(file, FileKind::all_reduce_benchmark, benchmark("message-ring", times_on(link, 4), 4, 4));
    CHECK(fit_link(file).one_node);
    CHECK(fit_link(file).source == "fitted to message-ring of 4 ranks on one node, 5 sizes, in all_reduce.json");
  }
}

TEST_CASE("measurements that cannot be fitted are refused") {
  const test::TemporaryFolder folder;
  const auto file = folder / "all_reduce.json";
  const auto times = times_on({20e-6, 1.25e9}, 4);
  const auto complaint = [&](const nlohmann::json& json) {
    write_json(file, FileKind::all_reduce_benchmark, json);
    return test::error_of([&] { fit_link(file); });
  };
  CHECK_THAT(complaint(benchmark("message-ring", times, 4, 2)), Catch::Contains("2 of 4 ranks were on one node"));
  CHECK_THAT(complaint(benchmark("message-ring", times, 1, 1)), Catch::Contains("one rank"));
  CHECK_THAT(complaint(benchmark("shm", times, 4, 1)), Catch::Contains("0 sizes"));
  CHECK_THAT(complaint(benchmark("ring", std::span(times).first(1), 4, 1)), Catch::Contains("1 sizes"));
  CHECK_THAT(complaint(benchmark("ring", std::vector<RingTime>{{4, 1}, {8, 0}}, 4, 1)), Catch::Contains("took 0 s"));
  auto uneven = times;
  for (std::size_t i = 0; i < uneven.size(); i += 2) uneven[i].seconds *= 3;
  CHECK_THAT(complaint(benchmark("message-ring", uneven, 4, 1)),
             Catch::Contains("% (root mean square) from the best link's, and 20 % is the limit"));
  nlohmann::json gathers = benchmark("ring", times, 4, 1);
  gathers["verb"] = "all-gather";
  CHECK_THAT(complaint(gathers), Catch::Contains("the rows are of all-gather, and the fit needs all-reduces"));
  CHECK_THAT(complaint({{"rows", 7}}), Catch::Contains("cannot fit a link"));
  CHECK_THAT(test::error_of([&] { fit_link(folder / "nothing.json"); }), Catch::Contains("nothing.json"));
}

}  // namespace annulus
