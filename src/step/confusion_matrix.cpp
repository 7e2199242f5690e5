#include "src/step/confusion_matrix.h"

#include <algorithm>
#include <cmath>

namespace annulus {

ClassResult ConfusionMatrix::result(std::size_t label) const {
  ClassResult result{.correct = count(label, label)};
  for (std::size_t other = 0; other < classes_; ++other) {
    result.images += count(label, other);
    result.predicted += count(other, label);
  }
  return result;
}

std::vector<ConfusionMatrix::Confusion> ConfusionMatrix::confusions(std::size_t most) const {
  std::vector<Confusion> found;
  for (std::size_t label = 0; label < classes_; ++label)
    for (std::size_t predicted = 0; predicted < classes_; ++predicted)
      if (label != predicted && count(label, predicted) > 0)
        found.push_back({label, predicted, count(label, predicted)});
  std::ranges::stable_sort(found, std::ranges::greater{}, &Confusion::count);
  if (found.size() > most) found.resize(most);
  return found;
}

std::size_t predicted_class(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t c = 1; c < logits.size(); ++c)
    if (!std::isnan(logits[best]) && !(logits[c] <= logits[best])) best = c;
  return best;
}

}  // namespace annulus
