#include "src/bench/bench_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/median.h"
#include "src/io/bytes.h"
#include "src/io/progress.h"
#include "src/job/consistency.h"
#include "src/job/machine.h"
#include "src/metrics/results.h"

namespace annulus {
namespace {

constexpr std::size_t kSmallBytes = 8;
constexpr std::size_t kWarmUp = 3, kFewest = 3, kMost = 2000;  // round trips

// Two ranks; the first starts each round trip.
struct Pair {
  int first, second;
};

std::vector<Pair> pairs_of(int ranks) {
  std::vector<Pair> pairs;
  for (int first = 0; first < ranks; ++first)
    for (int second = first + 1; second < ranks; ++second) pairs.push_back({first, second});
  return pairs;
}

// Returns each round trip's seconds.
std::vector<double> round_trips(const Channel& channel, std::span<std::byte> bytes, int peer, bool starts,
                                std::size_t count) {
  std::vector<double> seconds;
  for (std::size_t i = 0; i < count; ++i) {
    const double begin = now_seconds();
    if (starts) channel.send(bytes, peer);
    channel.receive(bytes, peer);
    if (!starts) channel.send(bytes, peer);
    seconds.push_back(now_seconds() - begin);
  }
  return seconds;
}

// Returns a message's median time. Called by both ranks; `starts`: by the pair's first.
double seconds_of_message(const Channel& channel, std::span<std::byte> bytes, int peer, bool starts, double seconds) {
  std::size_t count = 0;
  const double trip = median(round_trips(channel, bytes, peer, starts, kWarmUp));
  if (starts) {
    count = std::clamp(static_cast<std::size_t>(std::min(seconds / trip, double{kMost})), kFewest, kMost);
    channel.send(std::as_bytes(std::span(&count, 1)), peer);
  } else {
    channel.receive(std::as_writable_bytes(std::span(&count, 1)), peer);
  }
  return median(round_trips(channel, bytes, peer, starts, count)) / 2;
}

// A message's seconds between each two ranks.
class Times {
 public:
  explicit Times(int ranks)
      : ranks_(static_cast<std::size_t>(ranks)), pairs_(pairs_of(ranks)), seconds_(ranks_ * ranks_) {}

  const std::vector<Pair>& pairs() const { return pairs_; }
  double operator()(int a, int b) const { return seconds_[place(a, b)]; }
  void set(const Pair& pair, double seconds) {
    seconds_[place(pair.first, pair.second)] = seconds_[place(pair.second, pair.first)] = seconds;
  }
  void share(const World& world) { world.maximum(seconds_); }  // which only the pair's first rank has set

  Pair slowest() const {
    return *std::ranges::max_element(pairs_, {}, [&](const Pair& pair) { return (*this)(pair.first, pair.second); });
  }
  double median_pair() const {
    std::vector<double> seconds;
    for (const Pair& pair : pairs_) seconds.push_back((*this)(pair.first, pair.second));
    return median(std::move(seconds));
  }

 private:
  std::size_t place(int row, int column) const {
    return static_cast<std::size_t>(row) * ranks_ + static_cast<std::size_t>(column);
  }

  std::size_t ranks_;
  std::vector<Pair> pairs_;
  std::vector<double> seconds_;
};

// Measures pair by pair, while all other ranks wait.
void measure(const World& world, const BenchLinksOptions& options, Times& small, Times& large) {
  const Channel channel = world.channel();
  std::vector<std::byte> bytes(std::max(kSmallBytes, options.bytes), std::byte{1});
  Meter meter(world.root(), Meter::Style::bar);
  meter.begin();
  for (std::size_t done = 0; const Pair& pair : small.pairs()) {
    if (meter.due())
      meter.show("pairs of ranks", static_cast<double>(done) / static_cast<double>(small.pairs().size()),
                 fmt::format("{} of {}", done, small.pairs().size()));
    ++done;
    const bool starts = pair.first == world.rank();
    if (starts || pair.second == world.rank()) {
      const int peer = starts ? pair.second : pair.first;
      for (auto& [times, size] : {std::pair<Times&, std::size_t>(small, kSmallBytes), {large, options.bytes}}) {
        const double seconds =
            seconds_of_message(channel, std::span(bytes).first(size), peer, starts, options.seconds / 2);
        if (starts) times.set(pair, seconds);
      }
    }
    world.barrier();
  }
  meter.clear();
  small.share(world);
  large.share(world);
}

// Prints a matrix: value(each pair's seconds).
template <class Value>
void print(const std::string& title, const std::vector<std::string>& hosts, const Times& times, Value value) {
  const int ranks = static_cast<int>(hosts.size());
  fmt::print("{}\n{:>6}", title, "rank");
  for (int rank = 0; rank < ranks; ++rank) fmt::print(" {:>8}", rank);
  fmt::print("  host\n");
  for (int row = 0; row < ranks; ++row) {
    fmt::print("{:>6}", row);
    for (int column = 0; column < ranks; ++column)
      fmt::print(" {:>8}", row == column ? "-" : fmt::format("{:.4g}", value(times(row, column))));
    fmt::print("  {}\n", hosts[static_cast<std::size_t>(row)]);
  }
  const auto [first, second] = times.slowest();
  const double slowest = times(first, second);
  fmt::print("slowest: ranks {} and {}, {:.4g}; {:.2f} times the median pair's time\n\n", first, second, value(slowest),
             slowest / times.median_pair());
}

template <class Value>
nlohmann::json rows_of(int ranks, const Times& times, Value value) {
  nlohmann::json rows;
  for (int row = 0; row < ranks; ++row) {
    auto& values = rows.emplace_back(nlohmann::json::array());
    for (int column = 0; column < ranks; ++column)
      values.push_back(row == column ? nlohmann::json() : nlohmann::json(value(times(row, column))));
  }
  return rows;
}

}  // namespace

void bench_links(const World& world, const BenchLinksOptions& options) {
  check_same_command(world, "bench links");
  check_configuration(world, options.configuration);
  if (world.size() < 2) fail("bench links measures between ranks, and there is only one: use mpirun -np 2 or more");
  const std::vector<std::string> hosts = world.gather_texts(host_name());
  Times small(world.size()), large(world.size());
  measure(world, options, small, large);
  if (!world.root()) return;

  const auto latency = [](double seconds) { return seconds; };
  const auto bandwidth = [&](double seconds) { return static_cast<double>(options.bytes) / seconds; };
  print("latency, us: half the round trip of 8 bytes", hosts, small, [](double seconds) { return 1e6 * seconds; });
  print(fmt::format("bandwidth, GB/s: {} / half the round trip", format_bytes(options.bytes)), hosts, large,
        [&](double seconds) { return 1e-9 * bandwidth(seconds); });
  if (options.json.empty()) return;
  write_json(options.json, FileKind::links_benchmark,
             {{"version", ANNULUS_VERSION},
              {"hosts", hosts},
              {"bytes", options.bytes},
              {"latency_seconds", rows_of(world.size(), small, latency)},
              {"bandwidth_bytes_per_second", rows_of(world.size(), large, bandwidth)}});
}

}  // namespace annulus
