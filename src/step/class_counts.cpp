#include "src/step/class_counts.h"

namespace annulus {

void ClassCounts::add(std::span<const float> logits, std::span<const float> targets) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    std::int64_t* const of_class = &counts_[3 * (i % classes())];
    const bool actual = targets[i] > 0.5f, predicted = logits[i] > 0;
    of_class[0] += actual;
    of_class[1] += predicted;
    of_class[2] += actual && predicted;
  }
}

double ClassCounts::mean_of(std::optional<double> (ClassResult::*value)() const) const {
  double sum = 0;
  std::size_t used = 0;
  for (std::size_t label = 0; label < classes(); ++label) {
    const ClassResult counted = result(label);
    if (const auto found = (counted.*value)()) {
      sum += *found;
      ++used;
    }
  }
  return used > 0 ? sum / static_cast<double>(used) : 0;
}

}  // namespace annulus
