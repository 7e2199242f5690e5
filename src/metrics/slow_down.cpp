#include "src/metrics/slow_down.h"

#include <fmt/format.h>

#include <algorithm>

namespace annulus {
namespace {

constexpr std::size_t kCompared = 2;  // last epochs to compare
constexpr double kSlower = 0.10;
constexpr std::size_t kFewestSteps = 20;
constexpr double kFewestSeconds = 1;

// Per step.
StepTimes step_of(const StepTimes& total) {
  StepTimes step = total;
  for (double& seconds : step.seconds) seconds /= static_cast<double>(total.steps);
  return step;
}

StepTimes times_of(const EpochResult& epoch) {
  return epoch.accounts.mean();
}

}  // namespace

std::optional<SlowDown> find_slow_down(std::span<const EpochResult> epochs) {
  std::size_t images = 0;  // in a complete epoch
  for (const EpochResult& epoch : epochs) images = std::max(images, epoch.images);
  std::vector<const EpochResult*> warm;
  for (const EpochResult& epoch : epochs.subspan(std::min<std::size_t>(1, epochs.size())))
    if (epoch.images == images && epoch.steps >= kFewestSteps && epoch.seconds >= kFewestSeconds)
      warm.push_back(&epoch);
  if (warm.size() < 1 + kCompared) return std::nullopt;

  const StepTimes before = step_of(times_of(*warm.front()));
  const double limit = (1 + kSlower) * before.wall();
  StepTimes last;
  for (const EpochResult* epoch : std::span(warm).last(kCompared)) {
    last += times_of(*epoch);
    if (step_of(times_of(*epoch)).wall() <= limit) return std::nullopt;
  }
  const StepTimes after = step_of(last);
  std::size_t most = 0;
  for (std::size_t part = 0; part < StepTimes::kParts; ++part)
    if (after.seconds[part] - before.seconds[part] > after.seconds[most] - before.seconds[most]) most = part;
  return SlowDown{.reference = warm.front()->epoch,
                  .epochs = kCompared,
                  .share = after.wall() / before.wall() - 1,
                  .part = static_cast<StepTimes::Part>(most),
                  .part_before_seconds = before.seconds[most],
                  .part_after_seconds = after.seconds[most]};
}

std::string SlowDown::line() const {
  std::string name(StepTimes::kNames[part]);
  std::ranges::replace(name, '_', ' ');
  return fmt::format("the last {} epochs took {:.0f} % longer per step than epoch {}: {} {:.2f} -> {:.2f} ms", epochs,
                     100 * share, reference, name, 1e3 * part_before_seconds, 1e3 * part_after_seconds);
}

}  // namespace annulus
