#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "src/scaling/all_reduce_model.h"

namespace annulus {

// A measured time for the ring.
struct RingTime {
  std::size_t bytes;
  double seconds;
};

struct LinkFit {
  LinkModel link;
  double residual;  // root mean square of the relative errors
};

// Returns the latency and the bandwidth with which ring_seconds() fits the measurements best: least squares over the
// relative errors, so that small arrays have the same weight as large arrays. Neither is negative. Throws Error if the
// bandwidth cannot be determined from the times.
LinkFit fit_link(std::span<const RingTime> times, std::size_t ranks, const RingOptions& options, WireType wire);

struct MeasuredLink {
  LinkFit fit;
  std::size_t ranks;   // ranks in the measurement
  bool one_node;       // all ranks were on one node, so the link is memory, and no network
  std::string source;  // for the user: "fitted to message-ring of 2 ranks, 5 sizes, in all_reduce.json"
};

// Above this residual no link explains the times: predictions would be wrong by as much.
constexpr double kLargestResidual = 0.2;

// Fits a link to the ring's rows in a file from `annulus bench all-reduce --json`: message-ring's, or else ring's.
// Throws Error if the file has rows for fewer than two sizes, if two kinds of links were measured together, or if the
// residual is above kLargestResidual.
MeasuredLink fit_link(const std::filesystem::path& file);

}  // namespace annulus
