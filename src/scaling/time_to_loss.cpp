#include "src/scaling/time_to_loss.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "src/metrics/results.h"

namespace annulus {
namespace {

constexpr double kWorthwhile = 0.05;

// Returns the time to a loss, in units of the fewest steps.
double seconds_to_loss(double noise, const StepOfRanks& step) {
  return step.seconds * (1 + noise / static_cast<double>(step.global_batch));
}

}  // namespace

MeasuredNoise read_noise(const std::filesystem::path& results) {
  const nlohmann::json json = read_json(results);
  if (!json.contains("gradient_noise"))
    fail(
        "{} has no gradient noise: it is measured in logged steps (train --metrics-every) of several ranks, or of one "
        "with --accumulate or --shards; for networks whose embedding is also their head, only with --shards",
        results.string());
  try {
    const nlohmann::json& noise = json["gradient_noise"];
    const double scale = noise.at("scale").get<double>();
    const MeasuredNoise found{scale, noise.value("low", scale), noise.value("high", scale)};
    if (!(found.low > 0 && found.low <= scale && scale <= found.high)) fail("its interval does not contain the scale");
    return found;
  } catch (const std::exception& error) {
    fail("{}: not the gradient noise of a run: {}", results.string(), error.what());
  }
}

LossSpeedup loss_speedup(const MeasuredNoise& noise, const StepOfRanks& baseline, const StepOfRanks& step) {
  const auto with = [&](double scale) { return seconds_to_loss(scale, baseline) / seconds_to_loss(scale, step); };
  const auto [low, high] = std::minmax({with(noise.low), with(noise.high)});
  return {with(noise.scale), low, high};
}

std::size_t ranks_worth(const MeasuredNoise& noise, std::span<const StepOfRanks> steps) {
  const auto seconds = [&](const StepOfRanks& step) { return seconds_to_loss(noise.scale, step); };
  const double best = seconds(*std::ranges::min_element(steps, {}, seconds));
  std::size_t fewest = 0;
  for (const StepOfRanks& step : steps)
    if (seconds(step) * (1 - kWorthwhile) <= best && (fewest == 0 || step.ranks < fewest)) fewest = step.ranks;
  return fewest;
}

}  // namespace annulus
