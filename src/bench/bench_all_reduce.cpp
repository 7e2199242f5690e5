#include "src/bench/bench_all_reduce.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "kernels/base/allowed_resources.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/median.h"
#include "kernels/base/on_error.h"
#include "src/bench/broadcast.h"
#include "src/bench/wrong_elements.h"
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
  DeviceView memory;                    // for the largest size, allocated by the all-reduce
  std::vector<double> seconds;          // for every call with the current size, on the slowest rank
  std::vector<double> seconds_of_rank;  // on this rank
};

struct Row {
  std::string algorithm;
  std::size_t bytes;
  int ranks;
  double busbw_factor;  // busbw / algbw
  double median_seconds, min_seconds;
  double fastest_rank_seconds, slowest_rank_seconds;  // the ranks' own medians
  std::size_t wrong_elements;
  std::size_t iterations;

  double algbw() const { return static_cast<double>(bytes) / median_seconds; }  // bytes per second
  double busbw() const { return algbw() * busbw_factor; }
};

MeasuredVerb parse_verb(const std::string& name) {
  if (name == "broadcast") return MeasuredVerb::broadcast;
  if (name == "all-reduce") return MeasuredVerb::all_reduce;
  return name == "all-gather" ? MeasuredVerb::all_gather : MeasuredVerb::reduce_scatter;
}

double busbw_factor(MeasuredVerb verb, int ranks) {
  if (verb == MeasuredVerb::broadcast) return 1;
  return (verb == MeasuredVerb::all_reduce ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

nlohmann::json machine_facts(const World& world) {
  return {{"host", host_name()},  {"processor", processor_name()}, {"cores", allowed_processors().count},
          {"mpi", mpi_library()}, {"ranks", world.size()},         {"ranks_on_root_node", world.local_size()}};
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
void time_one_call(const World& world, Device& device, Candidate& candidate, MeasuredVerb verb, DeviceView values) {
  device.zero(values);
  device.finish();
  AllReduce& all_reduce = *candidate.all_reduce;
  const double begin = common_start(world);
  all_reduce.wait(all_reduce.enqueue(values, {.verb = verb_of(verb), .next = AllReduce::Next::wait}));
  double seconds = now_seconds() - begin;
  candidate.seconds_of_rank.push_back(seconds);
  world.maximum({&seconds, 1});
  candidate.seconds.push_back(seconds);
}

// All ranks have the same times, so all stop after the same round.
void time_rounds(const World& world, Device& device, std::vector<Candidate>& candidates, MeasuredVerb verb,
                 std::size_t bytes, double seconds, Meter& meter) {
  const double enough = seconds * static_cast<double>(candidates.size());
  double spent = 0;
  for (std::size_t round = 0; round < kMostRounds && (round < kFewestRounds || spent < enough); ++round) {
    if (meter.due()) {
      const double done = std::max(spent / enough, static_cast<double>(round) / kMostRounds);
      meter.show(format_bytes(bytes), std::min(done, 1.0), fmt::format("{} calls each", round));
    }
    for (Candidate& candidate : candidates) {
      time_one_call(world, device, candidate, verb, candidate.memory.slice(0, bytes));
      spent += candidate.seconds.back();
    }
  }
}

Row summarize(const World& world, const Candidate& candidate, MeasuredVerb verb, std::size_t bytes, std::size_t wrong) {
  double fastest = median(candidate.seconds_of_rank), slowest = fastest;
  world.minimum({&fastest, 1});
  world.maximum({&slowest, 1});
  return {.algorithm = candidate.name,
          .bytes = bytes,
          .ranks = world.size(),
          .busbw_factor = busbw_factor(verb, world.size()),
          .median_seconds = median(candidate.seconds),
          .min_seconds = std::ranges::min(candidate.seconds),
          .fastest_rank_seconds = fastest,
          .slowest_rank_seconds = slowest,
          .wrong_elements = wrong,
          .iterations = candidate.seconds.size()};
}

// Appends to `rows`. Returns a text for this rank's first wrong element; empty if all are exact.
std::string bench_size(const World& world, Device& device, std::vector<Candidate>& candidates, MeasuredVerb verb,
                       std::size_t bytes, double seconds, Meter& meter, std::vector<Row>& rows) {
  meter.begin();
  std::string first;
  std::vector<std::size_t> wrong;
  for (Candidate& candidate : candidates) {
    const WrongElements found =
        wrong_elements(world, device, *candidate.all_reduce, verb, candidate.memory.slice(0, bytes));
    wrong.push_back(found.count);
    if (first.empty() && !found.first.empty()) first = fmt::format("{}: {}", candidate.name, found.first);
    candidate.seconds.clear();
    candidate.seconds_of_rank.clear();
  }
  time_rounds(world, device, candidates, verb, bytes, seconds, meter);
  meter.clear();
  for (std::size_t i = 0; i < candidates.size(); ++i)
    rows.push_back(summarize(world, candidates[i], verb, bytes, wrong[i]));
  return first;
}

void print_head(std::span<const Candidate> candidates, const std::string& warning, WireType wire) {
  const std::string mark = warning_mark();
  if (!warning.empty()) fmt::print("{}{}\n", mark, warning);
  for (const Candidate& candidate : candidates) {
    fmt::print("{}: {}\n", candidate.name, candidate.all_reduce->info().description);
    if (const std::string text = unused_wire(*candidate.all_reduce, wire); !text.empty())
      fmt::print("{}{}\n", mark, text);
  }
  fmt::print("{:>10}  {:<12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6} {:>6}\n", "size", "algorithm", "median us",
             "minimum us", "fast rank", "slow rank", "algbw GB/s", "busbw GB/s", "wrong", "calls");
}

void print(const Row& row) {
  fmt::print("{:>10}  {:<12} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.3f} {:>10.3f} {:>6} {:>6}\n",
             format_bytes(row.bytes), row.algorithm, row.median_seconds * 1e6, row.min_seconds * 1e6,
             row.fastest_rank_seconds * 1e6, row.slowest_rank_seconds * 1e6, row.algbw() / 1e9, row.busbw() / 1e9,
             row.wrong_elements, row.iterations);
}

// Returns the mean over the sizes, for each algorithm.
std::map<std::string, double> average_busbw(std::span<const Row> rows) {
  std::map<std::string, double> sums, counts;
  for (const Row& row : rows) {
    sums[row.algorithm] += row.busbw();
    ++counts[row.algorithm];
  }
  for (auto& [algorithm, sum] : sums) sum /= counts[algorithm];
  return sums;
}

void print_averages(const std::map<std::string, double>& averages) {
  std::vector<std::string> texts;
  for (const auto& [algorithm, average] : averages) texts.push_back(fmt::format("{} {:.3f}", algorithm, average / 1e9));
  fmt::print("average busbw, GB/s: {}\n", fmt::join(texts, ", "));
}

nlohmann::json to_json(const World& world, const BenchAllReduceOptions& options, std::span<const Row> rows) {
  nlohmann::json json = {{"machine", machine_facts(world)},
                         {"verb", options.verb},
                         {"wire", options.wire},
                         {"average_busbw_bytes_per_second", average_busbw(rows)},
                         {"rows", nlohmann::json::array()}};
  for (const Row& row : rows)
    json["rows"].push_back({{"algorithm", row.algorithm},
                            {"bytes", row.bytes},
                            {"ranks", row.ranks},
                            {"median_seconds", row.median_seconds},
                            {"min_seconds", row.min_seconds},
                            {"fastest_rank_seconds", row.fastest_rank_seconds},
                            {"slowest_rank_seconds", row.slowest_rank_seconds},
                            {"algbw_bytes_per_second", row.algbw()},
                            {"busbw_bytes_per_second", row.busbw()},
                            {"wrong_elements", row.wrong_elements},
                            {"iterations", row.iterations}});
  return json;
}

void expect_possible(const BenchAllReduceOptions& options) {
  if (std::ranges::find(options.algorithms, "none") != options.algorithms.end())
    fail(
        "--algorithms none has nothing to time; use bench step --all-reduce auto,none for the cost of all-reduces in a "
        "step");
  if (options.verb == "broadcast")
    for (const std::string& name : options.algorithms)
      if (name != "mpi") fail("--algorithms {} has no broadcast: mpi has", name);
  for (const std::size_t bytes : options.sizes_bytes)
    if (bytes == 0 || bytes % sizeof(float) != 0)
      fail("cannot all-reduce {} bytes of float32; give a multiple of 4", bytes);
}

}  // namespace

void bench_all_reduce(const World& world, const BenchAllReduceOptions& options) {
  check_same_command(world, "bench all-reduce");
  check_configuration(world, options.configuration);
  expect_possible(options);
  const auto device = open_device(world, options.device);
  std::vector<NamedAllReduce> all_reduces;
  for (const std::string& name : options.algorithms)
    all_reduces.push_back({name, options.verb == "broadcast"
                                     ? make_broadcast(world, *device)
                                     : make_all_reduce(name, world, *device, parse_wire_type(options.wire))});
  time_all_reduces(world, *device, std::move(all_reduces), options);
}

void time_all_reduces(const World& world, Device& device, std::vector<NamedAllReduce> all_reduces,
                      const BenchAllReduceOptions& options) {
  const MeasuredVerb verb = parse_verb(options.verb);
  std::vector<Candidate> candidates;
  for (auto& [name, all_reduce] : all_reduces) {
    if (verb_of(verb) != Verb::all_reduce && !all_reduce->info().all_verbs)
      fail("--algorithms {} has no {}: {}", name, options.verb, all_reduce->info().description);
    const DeviceView memory = all_reduce->allocate(std::ranges::max(options.sizes_bytes));
    candidates.push_back({name, std::move(all_reduce), memory, {}, {}});
  }
  const OnError abandon_all_reduces(
      [&] { std::ranges::for_each(candidates, [](auto& c) { c.all_reduce->abandon(); }); });
  const std::string warning = device_warning(world, device);
  if (world.root()) print_head(candidates, warning, parse_wire_type(options.wire));
  Meter meter(world.root(), Meter::Style::bar);
  std::vector<Row> rows;
  std::string wrong;
  for (const std::size_t bytes : options.sizes_bytes) {
    const std::string first = bench_size(world, device, candidates, verb, bytes, options.seconds, meter, rows);
    if (wrong.empty()) wrong = first;
    if (world.root()) std::ranges::for_each(std::span(rows).last(candidates.size()), print);
  }
  if (world.root()) {
    print_averages(average_busbw(rows));
    if (!options.json.empty()) write_json(options.json, FileKind::all_reduce_benchmark, to_json(world, options, rows));
  }
  world.all_or_none([&] {
    if (!wrong.empty()) fail("wrong results (column wrong); the first by {}", wrong);
  });
}

}  // namespace annulus
