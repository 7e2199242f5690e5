#include "src/train/goal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::array<std::string_view, 3> kMeasures{"accuracy", "top5", "loss"};  // in the order of Measure

}  // namespace

bool Goal::reached(const Score& score) const {
  const auto found = score.value(measure);
  return found && (*found == value || is_better(measure, *found, value));
}

Goal parse_goal(const std::string& text) {
  const std::size_t middle = std::min(text.find('='), text.size());
  const std::string name = text.substr(0, middle), number = text.substr(std::min(middle + 1, text.size()));
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool known = std::ranges::find(kMeasures, name) != kMeasures.end();
  if (!known || error != std::errc{} || end != number.data() + number.size() || !(value > 0))
    fail("'{}' is not a goal: give accuracy=0.93, top5=0.99 or loss=0.2", text);
  const Goal goal{parse_measure(name), value};
  if (goal.measure != Measure::loss && value > 1) fail("'{}': {} is a share of all images, up to 1", text, name);
  return goal;
}

std::string to_string(const Goal& goal) {
  return fmt::format("{}={}", to_string(goal.measure), goal.value);
}

Measure parse_measure(const std::string& name) {
  const auto* found = std::ranges::find(kMeasures, name);
  if (found == kMeasures.end()) fail("'{}' is not accuracy, top5 or loss", name);
  return static_cast<Measure>(found - kMeasures.begin());
}

std::string to_string(Measure measure) {
  return std::string(kMeasures[static_cast<std::size_t>(measure)]);
}

}  // namespace annulus
