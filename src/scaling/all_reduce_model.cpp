#include "src/scaling/all_reduce_model.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "collectives/host/measure.h"
#include "collectives/host/recursive_doubling.h"
#include "collectives/host/shared_memory_all_reduce.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

double bytes_on(WireType wire, std::size_t bytes) {
  return static_cast<double>(bytes) / (wire == WireType::fp32 ? 1 : 2);
}

// A rank in the ring: the clock and messages in flight.
struct RingRank {
  double now = 0;
  double sent = 0;             // when all posted messages have left
  std::vector<double> leaves;  // when each message in flight leaves, a circular buffer
};

AllReduceModel message_ring(const Cluster& cluster, std::size_t ranks) {
  const bool one_node = ranks <= cluster.ranks_per_node;
  std::vector<LinkModel> links(std::min(ranks, cluster.ranks_per_node), cluster.node);
  if (!one_node) links.back() = cluster.network;
  const RingOptions options = message_ring_options(one_node);
  return {[=](std::size_t bytes) {
            return ring_seconds(links, ranks, bytes, options, cluster.wire, cluster.add_bytes_per_second);
          },
          fmt::format("ring over messages of {}", to_string(cluster.wire))};
}

AllReduceModel doubling(const Cluster& cluster, std::size_t ranks) {
  if (cluster.ranks_per_node > 1)
    fail("--all-reduce doubling can be predicted only for one rank per node, not for {}: use auto",
         cluster.ranks_per_node);
  return {[=](std::size_t bytes) { return doubling_seconds(cluster, ranks, bytes); },
          fmt::format("recursive doubling over messages of {}", to_string(cluster.wire))};
}

// Takes the faster algorithm for each size; a run measures the crossover when it starts.
AllReduceModel over_messages(const Cluster& cluster, std::size_t ranks) {
  const AllReduceModel small = doubling(cluster, ranks), large = message_ring(cluster, ranks);
  const std::size_t crossover = find_crossover(small.seconds, large.seconds);
  return {[=](std::size_t bytes) { return (bytes <= crossover ? small : large).seconds(bytes); },
          fmt::format("{}, recursive doubling up to {} KiB", large.name, crossover / 1024)};
}

AllReduceModel nothing() {
  return {[](std::size_t) { return 0.0; }, "none, because there is only one rank"};
}

// A rank owns a chunk: reads it from every other rank's array on the node, and writes the sum back to these arrays
// (shared_memory_all_reduce.h). If there are several nodes, `across_nodes` all-reduces the chunk in between. Small
// arrays are read and sent whole; on a single node a run measures the crossover at its start.
AllReduceModel shm(const Cluster& cluster, std::size_t ranks, const std::optional<AllReduceModel>& across_nodes,
                   std::string name) {
  const auto of_others = [ranks, node = cluster.node](std::size_t bytes) {
    return node.latency_seconds + static_cast<double>((ranks - 1) * bytes) / node.bytes_per_second;
  };
  const auto between = across_nodes.value_or(nothing()).seconds;
  const auto whole = [=](std::size_t bytes) { return of_others(bytes) + between(bytes); };
  const auto in_chunks = [=](std::size_t bytes) {
    const std::size_t chunk = RingPartition::chunk_of(bytes / sizeof(float), ranks, 0).size() * sizeof(float);
    return 2 * of_others(chunk) + between(chunk);
  };
  const std::size_t small = across_nodes ? SharedMemoryAllReduce::kSmallBytes
                                         : find_crossover(whole, in_chunks, SharedMemoryAllReduce::kLeastSmallBytes,
                                                          SharedMemoryAllReduce::kMostSmallBytes);
  return {[=](std::size_t bytes) { return bytes <= small ? whole(bytes) : in_chunks(bytes); }, std::move(name)};
}

// Each rank on a node forms a ring with the counterparts on other nodes; these rings share the node's link.
AllReduceModel hierarchical(const Cluster& cluster, std::size_t ranks) {
  Cluster nodes = cluster;
  nodes.ranks_per_node = 1;
  nodes.network.bytes_per_second /= static_cast<double>(cluster.ranks_per_node);
  const AllReduceModel across_nodes = over_messages(nodes, ranks / cluster.ranks_per_node);
  return shm(cluster, cluster.ranks_per_node, across_nodes,
             "hierarchical: in shared memory on each node, between nodes " + across_nodes.name);
}

// On a single node the model uses shm; a run uses the ring if it measures that to be faster.
AllReduceModel best(const Cluster& cluster, std::size_t ranks) {
  if (cluster.ranks_per_node == 1) return over_messages(cluster, ranks);
  if (ranks <= cluster.ranks_per_node) return shm(cluster, ranks, std::nullopt, "shm");
  return hierarchical(cluster, ranks);
}

AllReduceModel choose(const std::string& algorithm, const Cluster& cluster, std::size_t ranks) {
  if (ranks == 1) return nothing();
  if (algorithm == "message-ring") return message_ring(cluster, ranks);
  if (algorithm == "doubling") return doubling(cluster, ranks);
  if (algorithm == "auto") return best(cluster, ranks);
  fail("--all-reduce {} cannot be predicted; choose one of: auto, message-ring, doubling", algorithm);
}

}  // namespace

// Follows Ring::all_reduce() for all ranks with different links.
double ring_seconds(std::span<const LinkModel> links, std::size_t ranks, std::size_t bytes, const RingOptions& options,
                    WireType wire, double add_bytes_per_second) {
  const RingPartition cut(bytes / sizeof(float), ranks, options);
  const auto largest = [&](std::size_t number) { return cut.segment(0, number % cut.segments).size() * sizeof(float); };
  std::vector<RingRank> all(links.size(), {0, 0, std::vector<double>(cut.window)});
  for (std::size_t number = 0; number < cut.exchanges + cut.window; ++number) {
    const std::size_t slot = number % cut.window;
    if (number >= cut.window) {
      const std::size_t collected = number - cut.window;
      const bool adds = collected / cut.segments < ranks - 1;
      for (std::size_t r = 0; r < all.size(); ++r) {
        const std::size_t previous = (r + all.size() - 1) % all.size();
        const double arrived = all[previous].leaves[slot] + links[previous].latency_seconds;
        all[r].now = std::max({all[r].now, arrived, all[r].leaves[slot]});
        if (adds) all[r].now += static_cast<double>(largest(collected)) / add_bytes_per_second;
      }
    }
    if (number < cut.exchanges)
      for (std::size_t r = 0; r < all.size(); ++r) {
        all[r].sent = std::max(all[r].now, all[r].sent) + bytes_on(wire, largest(number)) / links[r].bytes_per_second;
        all[r].leaves[slot] = all[r].sent;
      }
  }
  return std::ranges::max(all, {}, &RingRank::now).now;
}

double doubling_seconds(const Cluster& cluster, std::size_t ranks, std::size_t bytes) {
  const auto exchanges = static_cast<double>(doubling_exchanges(0, ranks));
  const double additions = exchanges - (std::has_single_bit(ranks) ? 0 : 1);  // the last exchange only copies
  return exchanges *
             (cluster.network.latency_seconds + bytes_on(cluster.wire, bytes) / cluster.network.bytes_per_second) +
         additions * static_cast<double>(bytes) / cluster.add_bytes_per_second;
}

AllReduceModel model_all_reduce(const std::string& algorithm, const Cluster& cluster, std::size_t ranks) {
  if (ranks > cluster.ranks_per_node && ranks % cluster.ranks_per_node != 0)
    fail("{} ranks do not fill nodes of {}: choose a multiple of {}", ranks, cluster.ranks_per_node,
         cluster.ranks_per_node);
  AllReduceModel model = choose(algorithm, cluster, ranks);
  model.ranks = ranks;
  return model;
}

}  // namespace annulus
