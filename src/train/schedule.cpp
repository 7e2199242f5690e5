#include "src/train/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/error.h"

namespace annulus {
namespace {

bool falls(const ScheduleOptions& options) {
  return options.kind == "cosine" || options.kind == "polynomial";
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
  if (steps.empty())
    fail("--schedule step needs the epochs after which to lower the rate, such as --lr-steps 30,60,80");
  if (steps.front() <= 0 || std::ranges::adjacent_find(steps, std::ranges::greater_equal{}) != steps.end())
    fail("--lr-steps {} must be above 0 and in ascending order", fmt::join(steps, ","));
  if (steps.back() >= static_cast<double>(epochs))
    fail("--lr-steps {} are not all before the end, at {} --epochs: give those that are meant", fmt::join(steps, ","),
         epochs);
}

}  // namespace

void check(const ScheduleOptions& options, std::size_t epochs) {
  if (options.kind == "step") check_steps(options.steps, epochs);
  if (options.kind != "step" && !options.steps.empty())
    fail("--lr-steps belongs to --schedule step, and this is {}", options.kind);
  const ScheduleOptions defaults;
  if (options.kind != "step" && options.factor != defaults.factor)
    fail("--lr-factor belongs to --schedule step, and this is {}", options.kind);
  if (options.kind != "polynomial" && options.power != defaults.power)
    fail("--lr-power belongs to --schedule polynomial, and this is {}", options.kind);
  if (!falls(options) && options.end != 0)
    fail("--lr-end belongs to --schedule cosine or polynomial, and this is {}", options.kind);
  if (options.warmup == 0 && options.warmup_from) fail("--warmup-from requires --warmup");
  if (falls(options) && options.warmup >= static_cast<double>(epochs))
    fail("--warmup {} leaves none of the {} epochs for --schedule {}", options.warmup, epochs, options.kind);
  if (options.warmup > static_cast<double>(epochs))
    fail("--warmup {} is longer than the {} --epochs: give a shorter one", options.warmup, epochs);
}

Schedule::Schedule(const ScheduleOptions& options, std::size_t global_batch, std::size_t epochs)
    : options_(options),
      global_batch_(global_batch),
      epochs_(epochs),
      peak_(options.rate * scale(options, global_batch)),
      first_(peak_ * warmup_from(options, scale(options, global_batch))) {
  check(options, epochs);
}

float Schedule::rate(double epoch) const {
  const bool warming = epoch < options_.warmup;
  return static_cast<float>(warming ? first_ + (peak_ - first_) * epoch / options_.warmup : decayed(epoch));
}

double Schedule::decayed(double epoch) const {
  if (options_.kind == "step") {
    const auto passed = std::ranges::count_if(options_.steps, [&](double step) { return step <= epoch; });
    return peak_ * std::pow(options_.factor, static_cast<double>(passed));
  }
  if (!falls(options_)) return peak_;
  const double length = static_cast<double>(epochs_) - options_.warmup;
  const double done = std::min((epoch - options_.warmup) / length, 1.0);
  const double left =
      options_.kind == "cosine" ? (1 + std::cos(std::numbers::pi * done)) / 2 : std::pow(1 - done, options_.power);
  return options_.end + (peak_ - options_.end) * left;
}

std::string Schedule::description() const {
  std::string text = fmt::format("{:.6g}", options_.rate);
  if (options_.reference_batch > 0)
    text += fmt::format(" x {}/{} = {:.6g}", global_batch_, options_.reference_batch, peak_);
  if (options_.warmup > 0) text += fmt::format(", warm-up {} epochs from {:.6g}", options_.warmup, first_);
  if (options_.kind == "step")
    text += fmt::format(", then x {} after epochs {}", options_.factor, fmt::join(options_.steps, ", "));
  if (options_.kind == "cosine") text += fmt::format(", then cosine to {:.6g} at epoch {}", options_.end, epochs_);
  if (options_.kind == "polynomial")
    text += fmt::format(", then to {:.6g} at epoch {} as (1 - x)^{}", options_.end, epochs_, options_.power);
  return text;
}

}  // namespace annulus
