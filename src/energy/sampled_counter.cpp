#include "src/energy/sampled_counter.h"

#include <chrono>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr double kPeriodBetween = 1;  // seconds between readings between intervals
// A pause of this share of an interval does not end it: `bench step` has short turns.
constexpr double kPause = 0.02;

}  // namespace

SampledCounter::SampledCounter(EnergyCounter read, double period_seconds)
    : read_(std::move(read)), period_(period_seconds), first_(read_()), last_(first_) {
  thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

void SampledCounter::begin() {
  const std::lock_guard lock(mutex_);
  const double now = now_seconds();
  look();
  const bool continues = to_ && now - ended_ <= kPause * (ended_ - begun_);
  if (!continues) {
    count();
    begun_ = now;
  }
  inside_ = true;
  changed_.notify_all();
}

void SampledCounter::end() {
  const std::lock_guard lock(mutex_);
  look();
  inside_ = false;
  ended_ = now_seconds();
}

SampledCounter::Totals SampledCounter::totals() {
  const std::lock_guard lock(mutex_);
  look();
  const double joules = joules_ + (to_ ? to_->joules - from_->joules : 0);
  const double seconds = seconds_ + (to_ ? to_->seconds - from_->seconds : 0);
  if (!problem_.empty()) return {.unknown = problem_};
  if (seconds < kFewestReadings * period_)
    return {.unknown = fmt::format("steps of {:.2f} s are too short for the counter", seconds)};
  return {joules / seconds, last_.joules - first_.joules, ""};
}

void SampledCounter::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    look();
    const bool before = inside_;
    const auto period = std::chrono::duration<double>(before ? period_ : kPeriodBetween);
    changed_.wait_for(lock, stop, period, [&] { return inside_ && !before; });
  }
}

// Notes the counter's value if it has changed.
void SampledCounter::look() try {
  const EnergyReading now = read_();
  if (now.joules < last_.joules) fail("the energy counter was reset");
  if (now.joules == last_.joules) return;
  last_ = now;
  if (!inside_) return;
  if (!from_) from_ = now;
  to_ = now;
} catch (const Error& error) {
  problem_ = error.what();
}

// Counts the last interval.
void SampledCounter::count() {
  if (to_) {
    joules_ += to_->joules - from_->joules;
    seconds_ += to_->seconds - from_->seconds;
  }
  from_.reset();
  to_.reset();
}

}  // namespace annulus
