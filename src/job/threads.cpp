#include "src/job/threads.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/allowed_resources.h"
#include "kernels/device.h"
#include "src/job/binding.h"
#include "src/job/machine.h"

namespace annulus {
namespace {

// Reads a number as OpenMP does: from a list, with spaces around the numbers.
std::optional<int> first_number(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view first = std::string_view(text).substr(0, std::string_view(text).find(','));
  constexpr const char* kSpaces = " \t\n\v\f\r";
  const std::size_t begin = std::min(first.find_first_not_of(kSpaces), first.size());
  const std::size_t end = first.find_last_not_of(kSpaces) + 1;
  int number = 0;
  const auto [rest, error] = std::from_chars(first.data() + begin, first.data() + std::max(begin, end), number);
  if (error != std::errc{} || number < 1 || rest != first.data() + end) return std::nullopt;
  return number;
}

Threads from_environment(const char* name, int wanted, const ThreadWishes& wishes) {
  Threads threads{std::min(wanted, wishes.allowed), name, ""};
  if (wanted > wishes.allowed)
    threads.warning = fmt::format("{} asks for {} threads, but the {} allows {}; these are used", name, wanted,
                                  wishes.allowed_by, wishes.allowed);
  return threads;
}

// "1 rank", "2 ranks"
template <class Count>
std::string count_of(Count count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// Returns the affinity masks of this node's ranks.
std::vector<cpu_set_t> masks_of(const World& node) {
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof own, &own);
  const std::vector<std::byte> all = node.gather(std::as_bytes(std::span(&own, 1)));
  std::vector<cpu_set_t> masks(all.size() / sizeof own);
  std::memcpy(masks.data(), all.data(), all.size());
  return masks;
}

int processors_in(const std::vector<cpu_set_t>& masks) {
  cpu_set_t together;
  CPU_ZERO(&together);
  for (const cpu_set_t& mask : masks) CPU_OR(&together, &together, &mask);
  return std::min(CPU_COUNT(&together), allowed_processors().count);
}

ThreadWishes wishes_of(int option) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int allowed = processors_allowed();
  const bool bounds = sched_getaffinity(0, sizeof mask, &mask) == 0 && allowed < CPU_COUNT(&mask);
  return {.option = option,
          .omp_num_threads = std::getenv("OMP_NUM_THREADS"),
          .slurm_cpus_per_task = std::getenv("SLURM_CPUS_PER_TASK"),
          .allowed = allowed,
          .allowed_by = bounds ? allowed_processors().source : "affinity mask"};
}

}  // namespace

Threads choose_threads(const ThreadWishes& wishes) {
  if (wishes.option > 0) {
    Threads threads{wishes.option, "--threads", ""};
    if (wishes.option > wishes.allowed)
      threads.warning =
          fmt::format("--threads {} is more than the {} processors that the {} allows: threads will share processors",
                      wishes.option, wishes.allowed, wishes.allowed_by);
    return threads;
  }
  if (const auto wanted = first_number(wishes.omp_num_threads))
    return from_environment("OMP_NUM_THREADS", *wanted, wishes);
  if (const auto wanted = first_number(wishes.slurm_cpus_per_task))
    return from_environment("SLURM_CPUS_PER_TASK", *wanted, wishes);
  if (wishes.share < wishes.allowed) return {wishes.share, "share of the " + wishes.allowed_by, ""};
  return {wishes.allowed, wishes.allowed_by, ""};
}

Threads choose_threads(int option) {
  return choose_threads(wishes_of(option));
}

Threads choose_threads(const World& world, int option) {
  const World node = world.node();
  const std::vector<int> shares = shares_of(masks_of(node), allowed_processors().count);
  ThreadWishes wishes = wishes_of(option);
  wishes.share = shares.at(static_cast<std::size_t>(node.rank()));
  return choose_threads(wishes);
}

std::vector<int> shares_of(const std::vector<cpu_set_t>& masks, int quota) {
  std::array<int, CPU_SETSIZE> users{};
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    for (const cpu_set_t& mask : masks) users[processor] += CPU_ISSET(processor, &mask) ? 1 : 0;
  std::vector<double> shares;
  for (const cpu_set_t& mask : masks) {
    double& share = shares.emplace_back(0);
    for (int processor = 0; processor < CPU_SETSIZE; ++processor)
      if (CPU_ISSET(processor, &mask)) share += 1.0 / users[processor];
  }
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  std::vector<int> whole;
  for (const double share : shares) {
    constexpr double kRounding = 1e-6;
    const double within = std::min(share, quota * share / all);
    whole.push_back(share > 0 ? std::max(static_cast<int>(within + kRounding), 1) : INT_MAX);
  }
  return whole;
}

int processors_of(const World& node) {
  return processors_in(masks_of(node));
}

ThreadReport report_threads(const World& world, const Threads& own) {
  const World node = world.node();
  const std::vector<std::uint64_t> counts = node.gather(static_cast<std::uint64_t>(own.count));
  const auto threads = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  const std::vector<cpu_set_t> masks = masks_of(node);
  const int processors = processors_in(masks);
  const auto ranks = count_of(node.size(), "rank");
  const std::string load = fmt::format("{} on {}", count_of(threads, "thread"), count_of(processors, "processor"));
  std::string warning = own.warning;
  if (node.root() && warning.empty()) warning = binding_warning(masks, processors_if_unbound(), mpi_library());
  if (node.root() && threads > static_cast<std::uint64_t>(processors) && warning.empty())
    warning = fmt::format(
        "{} on {} compute with {}, which slows down every step: start fewer ranks, set --threads, or bind ranks to "
        "separate cores",
        ranks, host_name(), load);
  ThreadReport report;
  for (const std::string& text : world.gather_texts(warning))
    if (report.warning.empty()) report.warning = text;
  report.text = fmt::format("{} ({}); {} on this node: {}", own.count, own.source, ranks, load);
  return report;
}

}  // namespace annulus
