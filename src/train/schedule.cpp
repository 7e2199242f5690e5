#include "src/train/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr double kOneCycleWarmup = 0.3;           // of the epochs
constexpr double kOneCycleWarmupFrom = 1.0 / 25;  // of the rate

// From the end of the warm-up to the end of the last epoch.
bool falls(const ScheduleOptions& options) {
  return options.kind == "cosine" || options.kind == "polynomial" || options.kind == "one-cycle";
}

ScheduleOptions with_defaults(ScheduleOptions options, std::size_t epochs) {
  if (options.kind != "one-cycle") return options;
  if (options.warmup == 0) options.warmup = kOneCycleWarmup * static_cast<double>(epochs);
  if (!options.warmup_from) options.warmup_from = kOneCycleWarmupFrom;
  return options;
}

// Rises from 0 to 1 along half a cosine.
double half_cosine(double x) {
  return (1 - std::cos(std::numbers::pi * x)) / 2;
}

double scale(const ScheduleOptions& options, std::size_t global_batch) {
  if (options.reference_batch == 0) return 1;
  return static_cast<double>(global_batch) / static_cast<double>(options.reference_batch);
}

double warmup_from(const ScheduleOptions& options, double scale) {
  if (options.warmup_from) return *options.warmup_from;
  return options.reference_batch == 0 ? 0 : std::min(1.0, 1 / scale);
}

void check_steps(const std::vector<double>& steps, std::size_t epochs) {
  if (steps.empty()) fail("--schedule step needs the epochs after which to lower the rate, such as step:30,60,80");
  if (steps.front() <= 0 || std::ranges::adjacent_find(steps, std::ranges::greater_equal{}) != steps.end())
    fail("--schedule step:{}: epochs must be above 0 and in ascending order", fmt::join(steps, ","));
  if (steps.back() >= static_cast<double>(epochs))
    fail("--schedule step:{}: the epochs are not all before the end, at {} --epochs: give those that are meant",
         fmt::join(steps, ","), epochs);
}

}  // namespace

void check(const ScheduleOptions& options, std::size_t epochs) {
  if (options.kind == "step") check_steps(options.steps, epochs);
  if (options.kind != "step" && options.kind != "plateau" && options.factor != ScheduleOptions{}.factor)
    fail("--lr-factor belongs to --schedule step or plateau, and this is {}", options.kind);
  if ((options.kind == "step" || options.kind == "constant") && options.end != 0)
    fail("--lr-end does not belong to --schedule {}, but to the others", options.kind);
  if (options.kind == "plateau" && options.factor >= 1)
    fail("--lr-factor {} does not lower the rate of --schedule plateau: give a factor below 1", options.factor);
  if (options.kind == "cyclic" && options.cycle == 0)
    fail("--schedule cyclic needs the length of a cycle in epochs, such as cyclic:4");
  if (options.kind == "cyclic" && options.warmup > 0)
    fail("--schedule cyclic begins at --lr-end and rises by itself: remove --warmup");
  if (options.warmup == 0 && options.warmup_from && options.kind != "one-cycle")
    fail("--warmup 0:{0} has no warm-up that could start there: give epochs, such as 5:{0}", *options.warmup_from);
  if (falls(options) && options.warmup >= static_cast<double>(epochs))
    fail("--warmup {} leaves none of the {} epochs for --schedule {}", options.warmup, epochs, options.kind);
  if (options.warmup > static_cast<double>(epochs))
    fail("--warmup {} is longer than the {} --epochs: give a shorter one", options.warmup, epochs);
}

Schedule::Schedule(const ScheduleOptions& options, std::size_t global_batch, std::size_t epochs)
    : options_(with_defaults(options, epochs)),
      global_batch_(global_batch),
      epochs_(epochs),
      peak_(options.rate * scale(options, global_batch)),
      first_(peak_ * warmup_from(options_, scale(options, global_batch))) {
  check(options, epochs);
}

float Schedule::rate(double epoch, std::uint64_t reductions) const {
  return static_cast<float>(epoch < options_.warmup ? warmed_up(epoch) : decayed(epoch, reductions));
}

bool Schedule::reduces(std::uint64_t evaluations_since_best) const {
  return options_.kind == "plateau" && evaluations_since_best > 0 &&
         evaluations_since_best % (options_.patience + 1) == 0;
}

double Schedule::warmed_up(double epoch) const {
  const double done = epoch / options_.warmup;
  return first_ + (peak_ - first_) * (options_.kind == "one-cycle" ? half_cosine(done) : done);
}

double Schedule::decayed(double epoch, std::uint64_t reductions) const {
  if (options_.kind == "plateau")
    return std::max(peak_ * std::pow(options_.factor, static_cast<double>(reductions)), std::min(options_.end, peak_));
  if (options_.kind == "cyclic") {
    const double done = epoch / options_.cycle;
    return options_.end + (peak_ - options_.end) * (1 - std::abs(2 * (done - std::floor(done)) - 1));
  }
  if (options_.kind == "step") {
    const auto passed = std::ranges::count_if(options_.steps, [&](double step) { return step <= epoch; });
    return peak_ * std::pow(options_.factor, static_cast<double>(passed));
  }
  if (!falls(options_)) return peak_;
  const double length = static_cast<double>(epochs_) - options_.warmup;
  const double done = std::min((epoch - options_.warmup) / length, 1.0);
  const double left = options_.kind == "polynomial" ? std::pow(1 - done, options_.power) : 1 - half_cosine(done);
  return options_.end + (peak_ - options_.end) * left;
}

std::string Schedule::description() const {
  std::string text = fmt::format("{:.6g}", options_.rate);
  if (options_.reference_batch > 0)
    text += fmt::format(" x {}/{} = {:.6g}", global_batch_, options_.reference_batch, peak_);
  const bool one_cycle = options_.kind == "one-cycle";
  if (options_.warmup > 0)
    text += fmt::format(", warm-up {:.6g} epochs{} from {:.6g}", options_.warmup, one_cycle ? " along a cosine" : "",
                        first_);
  if (options_.kind == "step")
    text += fmt::format(", then x {} after epochs {}", options_.factor, fmt::join(options_.steps, ", "));
  if (options_.kind == "cyclic")
    text += fmt::format(", rising from {:.6g} and falling back every {} epochs", options_.end, options_.cycle);
  if (options_.kind == "plateau")
    text += fmt::format(", x {} whenever more than {} evaluations are not the best, down to {:.6g}", options_.factor,
                        options_.patience, options_.end);
  if (options_.kind == "cosine" || one_cycle)
    text += fmt::format(", then cosine to {:.6g} at epoch {}", options_.end, epochs_);
  if (options_.kind == "polynomial")
    text += fmt::format(", then to {:.6g} at epoch {} as (1 - x)^{}", options_.end, epochs_, options_.power);
  return text;
}

}  // namespace annulus
