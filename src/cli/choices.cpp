#include "src/cli/choices.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "models/zoo/zoo.h"
#include "src/cli/numbers.h"
#include "src/onnx/network_file.h"
#include "src/onnx/other_files.h"

namespace annulus {
namespace {

// Returns how many characters to insert, delete, replace or swap with a neighbour to turn `a` into `b` (the optimal
// string alignment distance).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> distance(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = i + j;
        continue;
      }
      distance[i][j] = std::min(
          {distance[i - 1][j] + 1, distance[i][j - 1] + 1, distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
    }
  }
  return distance.back().back();
}

}  // namespace

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates, const char* prefix) {
  constexpr std::size_t kLongest = 40, kShortestPrefix = 3;
  if (word.size() > kLongest || candidates.empty()) return "";
  const std::string lower = CLI::detail::to_lower(word);
  // At least half a short word must be right.
  const std::size_t most = std::min<std::size_t>(2, word.size() / 2);
  const auto distance = [&](const std::string& candidate) { return edit_distance(lower, candidate); };
  auto found = std::ranges::min_element(candidates, {}, distance);
  if (distance(*found) > most) {
    found = std::ranges::find_if(candidates, [&](const std::string& candidate) {
      return std::min(word.size(), candidate.size()) >= kShortestPrefix &&
             (candidate.starts_with(lower) || lower.starts_with(candidate));
    });
  }
  return found == candidates.end() ? "" : fmt::format("; did you mean {}{}?", prefix, *found);
}

CLI::Validator one_of(std::vector<std::string> choices) {
  const auto check = [choices = std::move(choices)](const std::string& text) -> std::string {
    if (std::ranges::find(choices, text) != choices.end()) return "";
    const std::string names =
        fmt::format("{} or {}", fmt::join(choices.begin(), choices.end() - 1, ", "), choices.back());
    return unexpected(names, text) + did_you_mean(text, choices);
  };
  return {check, ""};
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ZooEntry& entry : zoo()) names.push_back(entry.name);
  return names;
}

CLI::Validator network() {
  CLI::Validator of_zoo = one_of(model_names());
  const auto check = [of_zoo](std::string& text) -> std::string {
    if (is_network_file(text)) return "";
    const std::string unknown = of_zoo(text), other = unknown.empty() ? "" : other_network(text);
    return other.empty() ? unknown : fmt::format("{} is {}", in_quotes(text), other);
  };
  return {check, ""};
}

}  // namespace annulus
