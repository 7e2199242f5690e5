#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "collectives/ring/ring_partition.h"
#include "collectives/wire_type.h"

namespace annulus {

// What a sum takes on machines that are not here: the schedules that the algorithms have, on links of which two numbers
// are known, in virtual time.
//
// A link carries messages one after another, both ways at the same time: the last byte of a message leaves
// bytes / bandwidth after the message before it has left, and is there a latency later. (R. W. Hockney, "The
// communication challenge for MPP", Parallel Computing 20, 1994.) All ranks begin a sum together, nothing else uses the
// links, and switches carry what all links send.
struct LinkModel {
  double latency_seconds = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

// Where the ranks are, and what sums are made with.
struct Cluster {
  LinkModel network{};             // of each node
  std::size_t ranks_per_node = 1;  // neighbours
  LinkModel node{};                // between the ranks of a node, of each rank
  WireType wire = WireType::fp32;
  double add_bytes_per_second = std::numeric_limits<double>::infinity();  // with which a rank adds what has arrived
};

// Ring::sum() in virtual time, where rank r sends on links[r % links.size()]: a ring looks the same from every node.
// All chunks and segments are taken to be as large as the largest. That is exact where chunks go whole, as the largest
// chunk goes round over all links, and elsewhere at most a cache line for each exchange too much.
//
// With one segment in each chunk, on N ranks with equal links, and n bytes that divide evenly, this is
//
//    2(N-1) latency + 2(N-1)/N n / bandwidth,
//
// the cost that ring.h derives. With more segments latency is paid only where the wire rests.
double ring_seconds(std::span<const LinkModel> links, std::size_t ranks, std::size_t bytes, const RingOptions& options,
                    WireType wire, double add_bytes_per_second = std::numeric_limits<double>::infinity());

// Every rank on a node of its own.
double doubling_seconds(const Cluster& cluster, std::size_t ranks, std::size_t bytes);

// An algorithm on a number of ranks.
struct AllReduceModel {
  std::function<double(std::size_t bytes)> seconds;
  std::string name;
};

// `algorithm`: "message-ring", "doubling", or "auto", what make_all_reduce() takes for ranks in such places
// (on one node, direct). Throws Error where the ranks do not fill their nodes, or where this algorithm has no model.
AllReduceModel model_sum(const std::string& algorithm, const Cluster& cluster, std::size_t ranks);

}  // namespace annulus
