#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "collectives/world.h"

namespace annulus {

// Where the wall time of training steps went, in seconds. The parts add up to the wall time.
struct StepTimes {
  enum Part { input, compute, exposed_communication, waiting_for_slower_ranks, optimizer, rest, kParts };
  static constexpr std::array<std::string_view, kParts> kNames{
      "input", "compute", "exposed_communication", "waiting_for_slower_ranks", "optimizer", "rest"};

  std::array<double, kParts> seconds{};
  std::size_t steps = 0;

  double wall() const;
  StepTimes& operator+=(const StepTimes& other);
};

// Keeps the books of a rank's steps.
//
// A step waits for a bucket's sum for one of two reasons: the bytes are still under way, or some rank has not yet
// finished the gradients that belong in it. Which one it was is known once all ranks have said when their gradients
// were ready: up to the last rank's moment the wait was for slower ranks, after it for communication.
class Ledger {
 public:
  // `clock_offset`: see clock_offset_to_root().
  explicit Ledger(double clock_offset) : clock_offset_(clock_offset) {}

  void add(StepTimes::Part part, double seconds) { times_.seconds[part] += seconds; }
  void add_waits(std::span<const GradientBuckets::Times> buckets);
  void end_step(double wall_seconds);

  // The mean over the ranks of all that was booked since the last closing. Collective.
  StepTimes close(const World& world);

 private:
  double clock_offset_;
  double wall_ = 0;
  StepTimes times_;
  std::vector<double> ready_;  // of every step's every bucket, on the root's clock
  struct Wait {
    double begin, end;
  };
  std::vector<Wait> waits_;
};

}  // namespace annulus
