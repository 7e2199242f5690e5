#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>

#include "collectives/ring/ring_partition.h"
#include "collectives/wire_type.h"

namespace annulus {

// Predicts how long an all-reduce takes on machines that are not available: runs the algorithms' schedules in virtual
// time on links with a given latency and bandwidth.
//
// A link carries messages in sequence, in both directions concurrently: a message's last byte leaves bytes /
// bandwidth after the previous message has left, and arrives a latency later. (R. W. Hockney, "The communication
// challenge for MPP", Parallel Computing 20, 1994.) The model assumes that all ranks begin an all-reduce together, that
// nothing else uses the links, and that switches carry all links' traffic.
struct LinkModel {
  double latency_seconds = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

// Where ranks are, and how fast links and processors are.
struct Cluster {
  LinkModel network{};             // for each node
  std::size_t ranks_per_node = 1;  // consecutive ranks
  LinkModel node{};                // for each rank, between the ranks on a node
  WireType wire = WireType::fp32;
  double add_bytes_per_second = std::numeric_limits<double>::infinity();  // speed of adding received data, per rank
};

// Ring::all_reduce() in virtual time; rank r sends on links[r % links.size()], because a ring looks the same from every
// node. All chunks and segments are assumed to be as large as the largest. This is exact if chunks are not segmented,
// because the largest chunk passes over all links; otherwise it overestimates by at most a cache line per exchange.
//
// With a single segment in each chunk, on N ranks with equal links, and n bytes that divide evenly, this is
//
//    2(N-1) latency + 2(N-1)/N n / bandwidth,
//
// the cost that ring.h derives. With more segments latency is paid only while the wire is idle.
double ring_seconds(std::span<const LinkModel> links, std::size_t ranks, std::size_t bytes, const RingOptions& options,
                    WireType wire, double add_bytes_per_second = std::numeric_limits<double>::infinity());

// Recursive doubling. REQUIRES: every rank is alone on a node.
double doubling_seconds(const Cluster& cluster, std::size_t ranks, std::size_t bytes);

// An algorithm on a given number of ranks.
struct AllReduceModel {
  std::function<double(std::size_t bytes)> seconds;
  std::string name;
  std::size_t ranks = 1;
};

// `algorithm`: "message-ring", "doubling", or "auto", which make_all_reduce() would choose for this placement (shm on a
// single node). Throws Error if the ranks do not fill their nodes, or if the algorithm has no model.
AllReduceModel model_all_reduce(const std::string& algorithm, const Cluster& cluster, std::size_t ranks);

}  // namespace annulus
