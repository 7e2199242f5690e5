#include "src/train/goal.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/error.h"

namespace annulus {

bool Goal::reached(const Score& score) const {
  const auto found = score.value(measure);
  return found && (*found == value || is_better(measure, *found, value));
}

Goal parse_goal(const std::string& text) {
  const std::size_t middle = std::min(text.find('='), text.size());
  const std::string name = text.substr(0, middle), number = text.substr(std::min(middle + 1, text.size()));
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (middle == text.size() || error != std::errc{} || end != number.data() + number.size() || !(value > 0))
    fail("'{}' is not a goal: give {}", text, example_goals());
  const Goal goal{parse_measure(name), value};
  if (info(goal.measure).is_share() && value > 1) fail("'{}': {} is a share of all images, up to 1", text, name);
  return goal;
}

std::string to_string(const Goal& goal) {
  return fmt::format("{}={}", to_string(goal.measure), goal.value);
}

}  // namespace annulus
