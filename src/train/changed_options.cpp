#include "src/train/changed_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
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

// Writes numbers in one way: "1e-4,fc=0.010" is "0.0001,fc=0.01".
std::string canonical(const std::string& text) {
  std::string found;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t to = std::min(text.find_first_of(",:=", from), text.size());
    const std::string word = text.substr(from, to - from);
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    found += word.empty() || *end != '\0' ? word : fmt::format("{}", number);
    if (to < text.size()) found += text[to];
    from = to + 1;
  }
  return found;
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
    if (canonical(first) != canonical(second))
      text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", old, first, second);
  }
  return text;
}

}  // namespace annulus
