#include "src/step/step_metrics.h"

#include <cmath>
#include <cstring>

#include "kernels/base/error.h"

namespace annulus {

std::array<double, StepMetrics::kSums> StepMetrics::sums() const {
  const ControlFlags& flags = control_flags;
  return {loss, measure, flags.stop, flags.evaluate, flags.checkpoint, flags.copy, flags.skipped, flags.diverged};
}

StepMetrics StepMetrics::of(std::span<const double, kSums> sums) {
  const auto flag = [&](std::size_t number) { return static_cast<float>(sums[number]); };
  return {sums[0], sums[1], 1, {flag(2), flag(3), flag(4), flag(5), flag(6), flag(7)}};
}

bool StepMetrics::diverged() const {
  return !std::isfinite(loss) || control_flags.diverged > 0;
}

void StepMetrics::expect_finite(bool first) const {
  if (!diverged()) return;
  if (std::isfinite(loss))
    fail("an earlier update made parameters that are not finite: training has diverged; lower --lr");
  if (first)
    fail(
        "the loss is {} before the first update: the initial weights and these samples lead to it, whatever --lr is; "
        "look for values that are not finite or too large",
        loss);
  fail("the loss is {}: training has diverged; lower --lr", loss);
}

MetricsSlots::MetricsSlots(Model& model) : model_(model) {
  const Parameters& parameters = model.parameters();
  const Parameter& last = parameters.metrics() != nullptr ? *parameters.metrics() : parameters.control_flags();
  slots_.resize(last.offset + last.bytes);
}

DeviceView MetricsSlots::metrics(DeviceView arena) const {
  const Parameter& metrics = *model_.parameters().metrics();
  return arena.slice(metrics.offset, metrics.bytes);
}

void MetricsSlots::write(DeviceView arena, const ControlFlags& flags) {
  static_assert(sizeof flags == Parameters::kControlFlags * sizeof(float));
  model_.device().upload(std::as_bytes(std::span(&flags, 1)),
                         arena.slice(model_.parameters().control_flags().offset, sizeof flags));
}

StepMetrics MetricsSlots::read(DeviceView arena) {
  const Parameters& parameters = model_.parameters();
  model_.device().peek(arena.slice(0, slots_.size()), slots_);
  StepMetrics found;
  std::memcpy(&found.control_flags, slots_.data() + parameters.control_flags().offset, sizeof found.control_flags);
  std::array<float, 2> means{};
  if (const Parameter* metrics = parameters.metrics())
    std::memcpy(&means, slots_.data() + metrics->offset, sizeof means);
  found.loss = means[0];
  found.measure = means[1];
  return found;
}

}  // namespace annulus
