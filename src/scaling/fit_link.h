#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "src/scaling/all_reduce_model.h"

namespace annulus {

// How long the ring took.
struct RingTime {
  std::size_t bytes;
  double seconds;
};

struct LinkFit {
  LinkModel link;
  double residual;  // root of the mean square of the relative errors
};

// The latency and the bandwidth with which ring_seconds() comes closest to what was measured, by least squares of the
// relative errors, so that small sums count as much as large ones. Neither is negative. Throws Error where the times do
// not tell the bandwidth.
LinkFit fit_link(std::span<const RingTime> times, std::size_t ranks, const RingOptions& options, WireType wire);

struct MeasuredLink {
  LinkFit fit;
  std::size_t ranks;   // that measured it
  std::string source;  // for the user: "fitted to message-ring of 2 ranks, 5 sizes, in all_reduce.json"
};

// Fitted to the ring's rows of what `annulus bench all-reduce --json` has written: those of message-ring, or else of
// ring. Throws Error where the file has no rows of two sizes, or links of two kinds were measured as one.
MeasuredLink fit_link(const std::filesystem::path& file);

}  // namespace annulus
