#include "src/train/interval.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

using Unit = Interval::Unit;

struct Word {
  std::string_view text;
  Unit unit;
  double count;
};
constexpr std::array kWords = {Word{"steps", Unit::steps, 1},  Word{"step", Unit::steps, 1},
                               Word{"", Unit::steps, 1},       Word{"epochs", Unit::epochs, 1},
                               Word{"epoch", Unit::epochs, 1}, Word{"s", Unit::seconds, 1},
                               Word{"min", Unit::seconds, 60}, Word{"h", Unit::seconds, 3600}};

}  // namespace

Interval parse_interval(const std::string& text) {
  if (text == "end") return {Unit::run, 1};
  double count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto* word = std::ranges::find(kWords, unit, &Word::text);
  const bool whole = word != kWords.end() && (word->unit == Unit::seconds || count == std::floor(count));
  if (error != std::errc{} || !whole || !(count > 0) || !std::isfinite(count))
    fail("'{}' is not an interval: give a number of steps, such as 500, or 2epochs, 30s, 10min, 1h, or end", text);
  return {word->unit, count * word->count};
}

std::string to_string(const Interval& interval) {
  const auto* word = std::ranges::find(kWords, interval.unit, &Word::unit);
  return word == kWords.end() ? "end" : fmt::format("{} {}", interval.count, word->text);
}

Timer::Timer(const Interval& interval) : interval_(interval), begun_(now_seconds()) {}

bool Timer::time_has_come() const {
  return interval_.unit == Unit::seconds && now_seconds() - begun_ >= interval_.count;
}

bool Timer::due(const Range& steps, const StepPlan& step, bool time_has_come) const {
  const auto intervals = [this](std::uint64_t done) { return std::floor(static_cast<double>(done) / interval_.count); };
  switch (interval_.unit) {
    case Unit::steps:
      return intervals(steps.end) > intervals(steps.begin);
    case Unit::epochs:
      return step.last_of_epoch && intervals(step.epoch + 1) > intervals(step.epoch);
    case Unit::seconds:
      return time_has_come;
    case Unit::run:
      return false;
  }
  return false;
}

void Timer::restart() {
  begun_ = now_seconds();
}

}  // namespace annulus
