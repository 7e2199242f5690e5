#include "src/train/dry_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/median.h"
#include "src/io/bytes.h"
#include "src/io/duration.h"
#include "src/io/standard_output.h"
#include "src/job/machine.h"

namespace annulus {
namespace {

std::size_t steps_of(std::size_t samples, std::size_t global_batch) {
  return (samples + global_batch - 1) / global_batch;
}

// Two lines: steps from the first to the last, and their rates. REQUIRES: steps > 0.
std::vector<std::string> rate_lines(const TrainingInputs& inputs, const RunState& state, std::uint64_t steps) {
  constexpr std::uint64_t kPoints = 8;
  const double size = static_cast<double>(inputs.training->info().size);
  std::string numbers, rates;
  for (std::uint64_t point = 0, last = 0; point <= kPoints; ++point) {
    const std::uint64_t step = state.step + 1 + point * (steps - 1) / kPoints;
    if (step == last) continue;
    last = step;
    const double samples = (static_cast<double>(step - state.step) - 0.5) * static_cast<double>(inputs.global_batch);
    const double epoch =
        static_cast<double>(state.cursor.epoch) + (static_cast<double>(state.cursor.position) + samples) / size;
    numbers += fmt::format(" {:>9}", step);
    rates += fmt::format(" {:>9.3g}", inputs.schedule.rate(epoch, state.rate_reductions));
  }
  return {"  rate        at step" + numbers, "              rate   " + rates};
}

// Names the rank with the most memory. Collective.
std::string memory_text(const World& world) {
  const auto most = [&](std::uint64_t bytes) {
    const std::vector<std::uint64_t> all = world.gather(bytes);
    const auto largest = std::ranges::max_element(all);
    return fmt::format("{} (rank {})", format_bytes(*largest), largest - all.begin());
  };
  return fmt::format("at most {}, resident in these steps", most(peak_memory_bytes()));
}

std::string time_text(const StepTrial& trial, std::uint64_t steps) {
  if (trial.seconds.empty()) return "no step is left to measure";
  const double typical = median(trial.seconds);
  const auto [shortest, longest] = std::ranges::minmax(trial.seconds);
  return fmt::format(
      "{} for {} steps of {:.3f} ms (median of {} steps after {}, {:.3f} to {:.3f}), without evaluations and "
      "checkpoints",
      duration_text(typical * static_cast<double>(steps), 1), steps, 1e3 * typical, trial.seconds.size(), trial.warm_up,
      1e3 * shortest, 1e3 * longest);
}

}  // namespace

std::uint64_t steps_left(const TrainingInputs& inputs, const RunState& state) {
  const TrainOptions& options = inputs.options;
  if (inputs.complete(state)) return 0;
  const std::size_t size = inputs.training->info().size;
  const std::uint64_t left = steps_of(size - state.cursor.position, inputs.global_batch) +
                             (options.epochs - state.cursor.epoch - 1) * steps_of(size, inputs.global_batch);
  return options.max_steps > 0 ? std::min<std::uint64_t>(left, options.max_steps - state.step) : left;
}

std::string shares_text(const std::vector<std::uint64_t>& shares) {
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < shares.size(); begin = end) {
    while (end < shares.size() && shares[end] == shares[begin]) ++end;
    text += fmt::format("{}{} on rank{} {}{}", begin == 0 ? "" : ", ", shares[begin], end - begin > 1 ? "s" : "", begin,
                        end - begin > 1 ? fmt::format("-{}", end - 1) : "");
  }
  return text;
}

void report_dry_run(const TrainingInputs& inputs, Replica& replica, const RunState& state, const StepTrial& trial) {
  const World& world = inputs.world;
  const std::uint64_t steps = steps_left(inputs, state);
  const std::size_t size = inputs.training->info().size;
  const std::string shares = shares_text(world.gather(std::uint64_t{inputs.share(inputs.global_batch)}));
  const std::string memory = memory_text(world);
  const auto gpu_memory = gpu_memory_use(world, replica.model, replica.optimizer);
  if (!world.root()) return;
  fmt::print("dry run, which writes nothing\n");
  fmt::print("  samples     {} in {} steps an epoch; {} steps {}\n", size, steps_of(size, inputs.global_batch), steps,
             state.step > 0 ? "are left" : "in all");
  fmt::print("  shares      {}\n", shares);
  if (steps > 0)
    for (const std::string& line : rate_lines(inputs, state, steps)) fmt::print("{}\n", line);
  fmt::print("  memory      {}\n", memory);
  if (gpu_memory) fmt::print("              {}\n", to_string(*gpu_memory));
  print_anyway(fmt::format("  time        {}", time_text(trial, steps)));
}

}  // namespace annulus
