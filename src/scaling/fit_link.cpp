#include "src/scaling/fit_link.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "kernels/base/error.h"
#include "src/metrics/results.h"

namespace annulus {
namespace {

// How many latencies, and seconds per byte, an all-reduce's longest path takes.
struct Path {
  double latencies, bytes;
};

// An all-reduce takes as long as the longest of many paths, each with some latencies and bytes. So the time is locally
// linear in the link, and two links determine the path.
class Paths {
 public:
  Paths(std::span<const RingTime> times, std::size_t ranks, const RingOptions& options, WireType wire)
      : times_(times), ranks_(ranks), options_(options), wire_(wire) {}

  double seconds(const LinkModel& link, const RingTime& time) const {
    return ring_seconds({&link, 1}, ranks_, time.bytes, options_, wire_);
  }

  Path longest(const LinkModel& link, const RingTime& time) const {
    const double before = seconds(link, time);
    const double more = 1e-6 * before;
    const double latencies = (seconds({link.latency_seconds + more, link.bytes_per_second}, time) - before) / more;
    return {latencies, (before - latencies * link.latency_seconds) * link.bytes_per_second};
  }

  // Returns the link that fits best if the longest paths are as on `link`.
  LinkModel improve(const LinkModel& link) const {
    double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
    for (const RingTime& time : times_) {
      const Path path = longest(link, time);
      const double latencies = path.latencies / time.seconds, bytes = path.bytes / time.seconds;
      aa += latencies * latencies;
      ab += latencies * bytes;
      bb += bytes * bytes;
      a += latencies;
      b += bytes;
    }
    const double determinant = aa * bb - ab * ab;
    double latency = determinant > 1e-9 * aa * bb ? (a * bb - b * ab) / determinant : 0;
    double seconds_per_byte = (b - latency * ab) / bb;
    if (latency < 0) latency = 0, seconds_per_byte = b / bb;
    return {latency, 1 / seconds_per_byte};
  }

  double residual(const LinkModel& link) const {
    double sum = 0;
    for (const RingTime& time : times_) sum += std::pow(seconds(link, time) / time.seconds - 1, 2);
    return std::sqrt(sum / static_cast<double>(times_.size()));
  }

 private:
  std::span<const RingTime> times_;
  std::size_t ranks_;
  RingOptions options_;
  WireType wire_;
};

std::vector<RingTime> rows_of(const nlohmann::json& json, const std::string& algorithm) {
  std::vector<RingTime> times;
  for (const nlohmann::json& row : json.at("rows"))
    if (row.at("algorithm") == algorithm)
      times.push_back({row.at("bytes").get<std::size_t>(), row.at("median_seconds").get<double>()});
  return times;
}

MeasuredLink fit_rows(const nlohmann::json& json, const std::string& name) {
  if (const std::string verb = json.value("verb", "all-reduce"); verb != "all-reduce")
    fail("the rows are of {}, and the fit needs all-reduces", verb);
  const auto& machine = json.at("machine");
  const auto ranks = machine.at("ranks").get<std::size_t>();
  const auto on_node = machine.at("ranks_on_root_node").get<std::size_t>();
  if (ranks < 2) fail("one rank sends nothing; measure with at least two");
  if (on_node > 1 && on_node < ranks)
    fail(
        "{} of {} ranks were on one node, so links of two kinds were measured as one; measure with one rank on each "
        "node",
        on_node, ranks);
  std::string algorithm = "message-ring";
  std::vector<RingTime> times = rows_of(json, algorithm);
  if (times.empty()) times = rows_of(json, algorithm = "ring");
  std::set<std::size_t> sizes;
  for (const RingTime& time : times) sizes.insert(time.bytes);
  if (sizes.size() < 2)
    fail(
        "the ring's rows have {} sizes, but two are needed to fit latency and bandwidth; measure with --algorithms "
        "message-ring and several --sizes",
        sizes.size());
  const bool in_memory = algorithm == "ring" && on_node == ranks;  // in shared memory, with other segments
  const RingOptions options = in_memory ? RingOptions{} : message_ring_options(on_node == ranks);
  const LinkFit fit = fit_link(times, ranks, options, parse_wire_type(json.at("wire").get<std::string>()));
  if (fit.residual > kLargestResidual)
    fail(
        "the ring's times are off by {:.1f} % (root mean square) from the best link's, and {:.0f} % is the limit; "
        "measure "
        "between idle nodes, or give --latency and --bandwidth",
        100 * fit.residual, 100 * kLargestResidual);
  return {fit, ranks, on_node == ranks,
          fmt::format("fitted to {} of {} ranks{}, {} sizes, in {}", algorithm, ranks,
                      on_node == ranks ? " on one node" : "", sizes.size(), name)};
}

}  // namespace

// Gauss-Newton. The paths change with the link, so a step may also increase the residual.
LinkFit fit_link(std::span<const RingTime> times, std::size_t ranks, const RingOptions& options, WireType wire) {
  constexpr int kSteps = 50;
  for (const RingTime& time : times)
    if (!(time.seconds > 0)) fail("an all-reduce of {} bytes took {} s", time.bytes, time.seconds);
  const Paths paths(times, ranks, options, wire);
  const RingTime& largest = std::ranges::max(times, {}, &RingTime::bytes);
  LinkModel link{0, static_cast<double>(2 * largest.bytes) / largest.seconds};
  LinkFit best{link, paths.residual(link)};
  for (int step = 0; step < kSteps; ++step) {
    link = paths.improve(link);
    if (!(link.bytes_per_second > 0) || !std::isfinite(link.bytes_per_second))
      fail("larger arrays do not take longer, so the bandwidth cannot be determined: measure larger ones");
    if (const double residual = paths.residual(link); residual < best.residual) best = {link, residual};
  }
  return best;
}

MeasuredLink fit_link(const std::filesystem::path& file) {
  const nlohmann::json json = read_json(file);
  try {
    return fit_rows(json, file.filename().string());
  } catch (const std::exception& error) {
    fail("{}: cannot fit a link: {}", file.string(), error.what());
  }
}

}  // namespace annulus
