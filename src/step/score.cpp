#include "src/step/score.h"

#include <fmt/format.h>

namespace annulus {
namespace {

Measure main_measure(const Score& score) {
  for (const Measure measure : kMainMeasures)
    if (score[measure]) return measure;
  return Measure::loss;
}

}  // namespace

std::optional<double> Score::value(Measure measure) const {
  const std::optional<double>& one = (*this)[measure];
  return one && info(measure).is_counted() ? std::optional(*one / static_cast<double>(count)) : one;
}

std::vector<Measure> further_measures(const Score& score) {
  std::vector<Measure> measures;
  for (const Measure measure : kMeasures)
    if (score[measure] && measure != main_measure(score)) measures.push_back(measure);
  return measures;
}

std::string headline(const Score& score) {
  const Measure measure = main_measure(score);
  return to_string(measure, *score.value(measure));
}

std::string details(const Score& score) {
  const Measure main = main_measure(score);
  std::string text = fmt::format("{} {}", score.count, score[Measure::perplexity] ? "tokens" : "images");
  if (info(main).is_counted()) text = fmt::format("{} of {}", static_cast<std::uint64_t>(*score[main]), text);
  for (const Measure measure : further_measures(score)) text += ", " + to_string(measure, *score.value(measure));
  return text;
}

}  // namespace annulus
