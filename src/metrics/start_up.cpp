#include "src/metrics/start_up.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace annulus {
namespace {

const double kBegun = now_seconds();  // before main()

}  // namespace

double program_begun() {
  return kBegun;
}

std::string to_string(const StartUp& start_up) {
  std::vector<std::pair<double, std::string>> parts;
  for (std::size_t part = 0; part < StartUp::kParts; ++part) {
    std::string name(StartUp::kNames[part]);
    std::ranges::replace(name, '_', ' ');
    parts.emplace_back(start_up.seconds()[part], name);
  }
  std::ranges::stable_sort(parts, std::ranges::greater(), &std::pair<double, std::string>::first);
  std::vector<std::string> texts;
  for (const auto& [seconds, name] : parts) texts.push_back(fmt::format("{} {:.3f}", name, seconds));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace annulus
