#include "src/bench/bench_noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/base/clock.h"
#include "kernels/base/median.h"
#include "kernels/cpu/loops/arithmetic.h"
#include "kernels/device.h"
#include "src/io/progress.h"
#include "src/io/terminal.h"
#include "src/job/consistency.h"
#include "src/job/machine.h"
#include "src/job/threads.h"
#include "src/metrics/results.h"

namespace annulus {
namespace {

constexpr double kCalibrationSeconds = 0.2;
constexpr std::size_t kMostSteps = 10;  // per turn

// A rank's computation in a step.
struct Work {
  std::size_t rounds;  // on each thread, the same on all ranks
  double flops;        // all threads'
};

// Returns work that takes `seconds` on the fastest rank without disturbance.
Work calibrate(const World& world, double seconds) {
  constexpr std::size_t kRounds = 200'000;  // some tenths of a millisecond, much longer than starting threads takes
  double shortest = INFINITY;
  for (const double end = now_seconds() + kCalibrationSeconds; now_seconds() < end;) {
    const double begin = now_seconds();
    cpu::compute_in_registers(kRounds);
    shortest = std::min(shortest, now_seconds() - begin);
  }
  world.minimum({&shortest, 1});
  const auto rounds = static_cast<std::size_t>(std::ceil(kRounds * seconds / shortest));
  return {rounds, cpu::compute_in_registers(rounds)};
}

enum class Pace { apart, in_step };

class Candidate {
 public:
  Candidate(const World& world, const Work& work, Pace pace) : world_(world), work_(work), pace_(pace) {}

  const char* name() const { return pace_ == Pace::apart ? "apart" : "in step"; }

  void make_steps(std::size_t count) {
    world_.barrier();
    for (std::size_t i = 0; i < count; ++i) {
      const double begin = now_seconds();
      cpu::compute_in_registers(work_.rounds);
      if (pace_ == Pace::in_step) world_.barrier();
      seconds_.push_back(now_seconds() - begin);
    }
  }

  // To be called once after all steps. Collective.
  void summarize() {
    if (pace_ == Pace::in_step) world_.maximum(seconds_);
    medians_ = world_.gather(median(seconds_));
    flops_ = world_.gather(work_.flops);
    shortest_ = *std::ranges::min_element(seconds_);
    longest_ = *std::ranges::max_element(seconds_);
    world_.minimum({&shortest_, 1});
    world_.maximum({&longest_, 1});
  }

  const std::vector<double>& medians() const { return medians_; }  // seconds, for each rank
  // All ranks together. Uses their medians, so that disturbed turns do not count.
  double flops_per_second() const {
    return std::transform_reduce(flops_.begin(), flops_.end(), medians_.begin(), 0.0, std::plus(), std::divides());
  }

  void print() const {
    fmt::print("{:<8} {:>8} {:>12.3f} {:>12.3f} {:>12.3f} {:>12.1f}\n", name(), seconds_.size(), 1e3 * shortest_,
               1e3 * median(medians_), 1e3 * longest_, 1e-9 * flops_per_second());
  }

  nlohmann::json row() const {
    return {{"pace", name()},
            {"ranks", world_.size()},
            {"steps", seconds_.size()},
            {"min_seconds", shortest_},
            {"median_seconds", median(medians_)},
            {"max_seconds", longest_},
            {"flops_per_second", flops_per_second()},
            {"median_seconds_of_ranks", medians_}};
  }

 private:
  const World& world_;
  const Work work_;
  const Pace pace_;
  std::vector<double> seconds_;          // for every step
  std::vector<double> medians_, flops_;  // over each rank's steps
  double shortest_ = 0, longest_ = 0;
};

void print_slowest_rank(const Candidate& apart, const std::vector<std::string>& hosts) {
  const std::vector<double>& medians = apart.medians();
  const auto slowest = static_cast<std::size_t>(std::ranges::max_element(medians) - medians.begin());
  fmt::print("rank {} on {} is the slowest: apart, its steps take {:.2f} times the median rank's\n", slowest,
             hosts[slowest], medians[slowest] / median(medians));
}

}  // namespace

void bench_noise(const World& world, const BenchNoiseOptions& options) {
  check_same_command(world, "bench noise");
  check_configuration(world, options.configuration);
  const auto device = make_device("cpu", choose_threads(world, options.threads).count);
  const double wanted = 1e-3 * options.step_ms;
  const Work work = calibrate(world, wanted);
  std::array candidates{Candidate(world, work, Pace::apart), Candidate(world, work, Pace::in_step)};
  const auto steps = static_cast<std::size_t>(std::max(1.0, options.seconds / wanted));
  Meter meter(world.root(), Meter::Style::bar);
  meter.begin();
  for (std::size_t made = 0; made < steps; made += kMostSteps) {
    if (meter.due())
      meter.show("apart and in step", static_cast<double>(made) / static_cast<double>(steps),
                 fmt::format("{} of {} steps each", made, steps));
    for (Candidate& candidate : candidates) candidate.make_steps(std::min(kMostSteps, steps - made));
  }
  meter.clear();
  for (Candidate& candidate : candidates) candidate.summarize();
  const std::vector<std::string> hosts = world.gather_texts(host_name());
  if (!world.root()) return;

  fmt::print("{} rank{}, steps of {:g} ms of arithmetic in registers, {}\n", world.size(), world.size() == 1 ? "" : "s",
             options.step_ms, device->info().description);
  fmt::print("{:<8} {:>8} {:>12} {:>12} {:>12} {:>12}\n", "ranks go", "steps", "minimum ms", "median ms", "maximum ms",
             "GFLOP/s");
  for (const Candidate& candidate : candidates) candidate.print();
  const auto& [apart, in_step] = candidates;
  if (world.size() > 1) {
    const double share = in_step.flops_per_second() / apart.flops_per_second();
    fmt::print("in step, ranks do {} of what they do apart\n",
               emphasized(stdout, Emphasis::headline, fmt::format("{:.1f} %", 100 * share)));
    print_slowest_rank(apart, hosts);
  }
  if (options.json.empty()) return;
  nlohmann::json rows;
  for (const Candidate& candidate : candidates) rows.push_back(candidate.row());
  write_json(
      options.json, FileKind::noise_benchmark,
      {{"version", ANNULUS_VERSION}, {"device", device->info().description}, {"step_seconds", wanted}, {"rows", rows}});
}

}  // namespace annulus
