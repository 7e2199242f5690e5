#include "src/step/score.h"

#include <fmt/format.h>

#include <algorithm>

namespace annulus {
namespace {

Measure main_measure(const Score& score) {
  return *std::ranges::find_if(kMeasures, [&](Measure measure) { return score.value(measure).has_value(); });
}

}  // namespace

std::optional<double> Score::value(Measure measure) const {
  const auto share = [this](const std::optional<std::uint64_t>& images) {
    return images ? std::optional(static_cast<double>(*images) / static_cast<double>(count)) : std::nullopt;
  };
  switch (measure) {
    case Measure::f1:
      return f1;
    case Measure::mae:
      return mae;
    case Measure::perplexity:
      return perplexity;
    case Measure::bits_per_byte:
      return bits_per_byte;
    case Measure::accuracy:
      return share(correct);
    case Measure::top5:
      return share(top5);
    case Measure::loss:
      break;
  }
  return loss;
}

std::vector<Measure> further_measures(const Score& score) {
  std::vector<Measure> found;
  for (const Measure measure : kMeasures)
    if (score.value(measure) && measure != main_measure(score)) found.push_back(measure);
  return found;
}

std::string headline(const Score& score) {
  const Measure measure = main_measure(score);
  return to_string(measure, *score.value(measure));
}

std::string details(const Score& score) {
  std::string text = main_measure(score) == Measure::accuracy
                         ? fmt::format("{} of {} images", *score.correct, score.count)
                         : fmt::format("{} {}", score.count, score.perplexity ? "tokens" : "images");
  for (const Measure measure : further_measures(score)) text += ", " + to_string(measure, *score.value(measure));
  return text;
}

}  // namespace annulus
