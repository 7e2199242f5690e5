#include "src/train/changed_options.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

namespace annulus {

std::string changed_options(const std::string& before, const std::string& now) {
  std::map<std::string, std::string> earlier;
  std::istringstream old_lines(before), new_lines(now);
  for (std::string line; std::getline(old_lines, line);)
    if (const std::size_t equals = line.find('='); equals != std::string::npos)
      earlier[line.substr(0, equals)] = line.substr(equals + 1);
  std::string text;
  for (std::string line; std::getline(new_lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string value = line.substr(equals + 1);
    const auto old = earlier.find(line.substr(0, equals));
    if (old == earlier.end() || old->second == value) continue;
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", old->first, old->second, value);
  }
  return text;
}

}  // namespace annulus
