#include "src/bench/bench_all_reduce.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "collectives/all_reduce.h"
#include "kernels/base/allowed_resources.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/on_error.h"
#include "src/io/bytes.h"
#include "src/io/progress.h"
#include "src/io/terminal.h"
#include "src/job/consistency.h"
#include "src/job/machine.h"
#include "src/job/open_device.h"
#include "src/metrics/results.h"

namespace annulus {

namespace {

constexpr std::size_t kFewestRounds = 3;
constexpr std::size_t kMostRounds = 2000;

struct Candidate {
  std::string name;
  std::unique_ptr<AllReduce> all_reduce;
  DeviceView memory;            // for the largest size, allocated by the all-reduce
  std::vector<double> seconds;  // for every call with the current size
};

struct Row {
  std::string algorithm;
  std::size_t bytes;
  int ranks;
  double median_seconds;
  double min_seconds;
  std::size_t iterations;

  double algbw() const { return static_cast<double>(bytes) / median_seconds; }  // bytes per second
  double busbw() const { return algbw() * 2 * (ranks - 1) / ranks; }
};

nlohmann::json machine_facts(const World& world) {
  return {{"host", host_name()},  {"processor", processor_name()}, {"cores", allowed_processors().count},
          {"mpi", mpi_library()}, {"ranks", world.size()},         {"ranks_on_root_node", world.local_size()}};
}

// Small integers are added without rounding in any order: float32 represents all up to 2^24, bf16 up to 256.
void check_exactness(const World& world, Device& device, const Candidate& candidate, WireType wire, DeviceView array) {
  const int ranks = world.size();
  const int period = wire == WireType::fp32 ? 1021 : 3;
  const auto share = [&](int rank) { return wire == WireType::fp32 ? rank : rank % 2; };
  int shares = 0;
  for (int rank = 0; rank < ranks; ++rank) shares += share(rank);
  const auto next = [&](int phase) { return phase + 1 == period ? 0 : phase + 1; };  // division would be slow
  std::vector<float> values(array.bytes / sizeof(float));
  for (int phase = 0; float& value : values) {
    value = static_cast<float>(phase + share(world.rank()));
    phase = next(phase);
  }
  device.upload(std::as_bytes(std::span(values)), array);
  candidate.all_reduce->wait(candidate.all_reduce->enqueue(array));
  device.download(array, std::as_writable_bytes(std::span(values)));
  int phase = 0;
  for (std::size_t i = 0; i < values.size(); ++i, phase = next(phase)) {
    const auto expected = static_cast<float>(ranks * phase + shares);
    if (values[i] != expected)
      fail("all-reduce '{}' is wrong: element {} of {} is {} instead of {}", candidate.name, i, values.size(),
           values[i], expected);
  }
}

// Ranks leave a barrier up to a microsecond apart, which is as long as a small all-reduce takes. So if each rank has a
// core, they agree on a start time on their shared clock.
double common_start(const World& world) {
  constexpr double head_start = 10e-6;  // enough for every rank to leave maximum()
  if (!world.one_node() || world.size() > allowed_processors().count) {
    world.barrier();
    return now_seconds();
  }
  double begin = now_seconds() + head_start;
  world.maximum({&begin, 1});
  while (now_seconds() < begin) {
  }
  return begin;
}

// Every rank rewrites its array, as backward does with gradients: an untouched array would still be in the caches of
// the ranks that added it. (And repeated sums would overflow.)
double time_one_call(const World& world, Device& device, AllReduce& all_reduce, DeviceView values) {
  device.zero(values);
  device.finish();
  const double begin = common_start(world);
  all_reduce.wait(all_reduce.enqueue(values, {.next = AllReduce::Next::wait}));
  double seconds = now_seconds() - begin;
  world.maximum({&seconds, 1});
  return seconds;
}

// All ranks have the same times, so all stop after the same round.
void time_rounds(const World& world, Device& device, std::vector<Candidate>& candidates, std::size_t bytes,
                 double seconds, Meter& meter) {
  const double enough = seconds * static_cast<double>(candidates.size());
  double spent = 0;
  for (std::size_t round = 0; round < kMostRounds && (round < kFewestRounds || spent < enough); ++round) {
    if (meter.due()) {
      const double done = std::max(spent / enough, static_cast<double>(round) / kMostRounds);
      meter.show(format_bytes(bytes), std::min(done, 1.0), fmt::format("{} calls each", round));
    }
    for (Candidate& candidate : candidates) {
      const DeviceView values = candidate.memory.slice(0, bytes);
      candidate.seconds.push_back(time_one_call(world, device, *candidate.all_reduce, values));
      spent += candidate.seconds.back();
    }
  }
}

Row summarize(const World& world, Candidate& candidate, std::size_t bytes) {
  std::vector<double>& seconds = candidate.seconds;
  std::ranges::sort(seconds);
  return {.algorithm = candidate.name,
          .bytes = bytes,
          .ranks = world.size(),
          .median_seconds = seconds[seconds.size() / 2],
          .min_seconds = seconds.front(),
          .iterations = seconds.size()};
}

std::vector<Row> bench_size(const World& world, Device& device, std::vector<Candidate>& candidates, WireType wire,
                            std::size_t bytes, double seconds, Meter& meter) {
  meter.begin();
  for (Candidate& candidate : candidates) {
    check_exactness(world, device, candidate, wire, candidate.memory.slice(0, bytes));
    candidate.seconds.clear();
  }
  time_rounds(world, device, candidates, bytes, seconds, meter);
  meter.clear();
  std::vector<Row> rows;
  for (Candidate& candidate : candidates) rows.push_back(summarize(world, candidate, bytes));
  return rows;
}

void print(const Row& row) {
  fmt::print("{:>10}  {:<9} {:>12.1f} {:>12.1f} {:>9.3f} {:>9.3f} {:>7}\n", format_bytes(row.bytes), row.algorithm,
             row.median_seconds * 1e6, row.min_seconds * 1e6, row.algbw() / 1e9, row.busbw() / 1e9, row.iterations);
}

nlohmann::json to_json(nlohmann::json machine, const std::string& wire, std::span<const Row> rows) {
  nlohmann::json json = {{"machine", std::move(machine)}, {"wire", wire}, {"rows", nlohmann::json::array()}};
  for (const Row& row : rows)
    json["rows"].push_back({{"algorithm", row.algorithm},
                            {"bytes", row.bytes},
                            {"ranks", row.ranks},
                            {"median_seconds", row.median_seconds},
                            {"min_seconds", row.min_seconds},
                            {"algbw_bytes_per_second", row.algbw()},
                            {"busbw_bytes_per_second", row.busbw()},
                            {"iterations", row.iterations}});
  return json;
}

}  // namespace

void bench_all_reduce(const World& world, const BenchAllReduceOptions& options) {
  check_same_command(world, "bench all-reduce");
  check_configuration(world, options.configuration);
  if (std::ranges::find(options.algorithms, "none") != options.algorithms.end())
    fail(
        "--algorithms none has nothing to time; use bench step --all-reduce auto,none for the cost of all-reduces in a "
        "step");
  for (const std::size_t bytes : options.sizes_bytes)
    if (bytes == 0 || bytes % sizeof(float) != 0)
      fail("cannot all-reduce {} bytes of float32; give a multiple of 4", bytes);
  const auto device = open_device(world, options.device);
  const std::string warning = device_warning(world, *device);
  std::vector<Candidate> candidates;
  const WireType wire = parse_wire_type(options.wire);
  const std::size_t largest = std::ranges::max(options.sizes_bytes);
  for (const std::string& name : options.algorithms) {
    auto all_reduce = make_all_reduce(name, world, *device, wire);
    const DeviceView memory = all_reduce->allocate(largest);
    candidates.push_back({name, std::move(all_reduce), memory, {}});
  }
  const OnError abandon_all_reduces(
      [&] { std::ranges::for_each(candidates, [](auto& c) { c.all_reduce->abandon(); }); });
  if (world.root()) {
    const std::string mark = warning_mark();
    if (!warning.empty()) fmt::print("{}{}\n", mark, warning);
    for (const Candidate& candidate : candidates) {
      fmt::print("{}: {}\n", candidate.name, candidate.all_reduce->info().description);
      if (const std::string text = unused_wire(*candidate.all_reduce, wire); !text.empty())
        fmt::print("{}{}\n", mark, text);
    }
    fmt::print("{:>10}  {:<9} {:>12} {:>12} {:>9} {:>9} {:>7}\n", "size", "algorithm", "median us", "minimum us",
               "algbw GB/s", "busbw GB/s", "calls");
  }
  Meter meter(world.root(), Meter::Style::bar);
  std::vector<Row> rows;
  for (const std::size_t bytes : options.sizes_bytes)
    for (Row& row : bench_size(world, *device, candidates, wire, bytes, options.seconds, meter)) {
      if (world.root()) print(row);
      rows.push_back(std::move(row));
    }
  if (world.root() && !options.json.empty())
    write_json(options.json, FileKind::all_reduce_benchmark, to_json(machine_facts(world), options.wire, rows));
}

}  // namespace annulus
