#include "src/train/changed_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "src/train/renamed_options.h"

namespace annulus {
namespace {

using Configuration = std::map<std::string, std::vector<std::string>, std::less<>>;

// Parses ["a", "b"], "a" or 1.
std::vector<std::string> values_of(std::string text) {
  std::erase_if(text, [](char c) { return c == '"' || c == '[' || c == ']'; });
  std::vector<std::string> values;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(", ", from), text.size());
    values.push_back(text.substr(from, comma - from));
    from = comma + 2;
  }
  return values;
}

std::string joined(const std::vector<std::string>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

Configuration parse(const std::string& text) {
  Configuration options;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const std::size_t equals = line.find('='); equals != std::string::npos)
      options[line.substr(0, equals)] = values_of(line.substr(equals + 1));
  return options;
}

}  // namespace

std::string changed_options(const std::string& before, const std::string& now) {
  Configuration earlier = parse(before);
  merge_renamed([&](std::string_view option) {
    const auto found = earlier.find(option);
    return found == earlier.end() ? nullptr : &found->second;
  });
  std::string text;
  std::istringstream lines(now);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string old = line.substr(0, equals);
    const auto found = earlier.find(old);
    if (found == earlier.end()) continue;
    const std::string first = joined(found->second), second = joined(values_of(line.substr(equals + 1)));
    if (first != second) text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", old, first, second);
  }
  return text;
}

}  // namespace annulus
