#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "models/network/model.h"

namespace annulus {

// Requests of the ranks at the end of a step: a rank passes 1 or 0, and every rank reads from the sums whether any rank
// made the request.
struct ControlFlags {
  float stop = 0, evaluate = 0, checkpoint = 0;
  float copy = 0;      // see Step::Hooks
  float skipped = 0;   // the rank has skipped bad samples
  float diverged = 0;  // set by the step: an update made a parameter that is not finite

  bool operator==(const ControlFlags&) const = default;
};

// The result of a step over the whole global batch, the same on every rank; if the all-reduce does not sum, over this
// rank's share only.
struct StepMetrics {
  double loss = 0;             // mean, this and the next from the forward pass, before the update
  double measure = 0;          // mean of LossSums::measure, see step_measure()
  std::size_t steps = 1;       // number of steps as which it counts, see Step
  ControlFlags control_flags;  // sums over the ranks' arguments of run(), other stages included

  static constexpr std::size_t kSums = 8;
  std::array<double, kSums> sums() const;
  static StepMetrics of(std::span<const double, kSums> sums);

  bool diverged() const;
  // Throws Error if training has diverged. `first`: no update was made.
  void expect_finite(bool first) const;
};

// The slots at the begin of an arena, in which control flags and metrics are all-reduced with the first bucket.
class MetricsSlots {
 public:
  explicit MetricsSlots(Model& model);

  std::size_t bytes() const { return slots_.size(); }
  DeviceView metrics(DeviceView arena) const;  // loss and measure. REQUIRES: this rank's stage computes them
  void write(DeviceView arena, const ControlFlags& flags);
  StepMetrics read(DeviceView arena);  // the metrics are 0 if another stage of a pipeline has them

 private:
  Model& model_;
  std::vector<std::byte> slots_;
};

}  // namespace annulus
