#pragma once

#include <array>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/clock.h"

namespace annulus {

// Returns when this program was started, in now_seconds().
double program_begun();

// A breakdown of the time from the program's start to the first step: marks in, times out. The parts add up to total().
//
//   | MPI | consistency | device | data | ... | first batch | first step
//   ^ program_begun()                                       ^ last mark
class StartUp {
 public:
  enum Part {
    mpi,          // with the command line
    consistency,  // comparing ranks and their clocks
    device,
    data,
    network,     // graph, plans and arrays
    tuning,      // of plans and of the decoder
    folder,      // of the run, and its last checkpoint; waiting for a job that --take-over replaces
    all_reduce,  // connecting ranks, and measuring
    weights,     // random, a file's, or a checkpoint's
    peak_speed,  // measured for MFU
    files,       // config.toml, metrics and the like
    first_batch,
    kParts
  };
  static constexpr std::array<std::string_view, kParts> kNames{"mpi",     "consistency", "device", "data",
                                                               "network", "tuning",      "folder", "all_reduce",
                                                               "weights", "peak_speed",  "files",  "first_batch"};

  // The time since the last mark is that of `part`.
  void mark(Part part) {
    const double now = now_seconds();
    seconds_[part] += now - std::exchange(last_, now);
  }
  // Returns a value whose computation is `part`.
  template <class T>
  T mark(Part part, T value) {
    mark(part);
    return value;
  }

  const std::array<double, kParts>& seconds() const { return seconds_; }
  double total() const { return std::accumulate(seconds_.begin(), seconds_.end(), 0.0); }

 private:
  double last_ = program_begun();
  std::array<double, kParts> seconds_{};
};

std::string to_string(const StartUp& start_up);  // the parts, longest first

}  // namespace annulus
