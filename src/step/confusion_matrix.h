#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/step/class_counts.h"

namespace annulus {

// Counts the images of each class by the class that was predicted.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::size_t classes) : classes_(classes), counts_(classes * classes) {}

  void add(std::size_t label, std::size_t predicted) { ++counts_[label * classes_ + predicted]; }

  std::size_t classes() const { return classes_; }
  std::int64_t count(std::size_t label, std::size_t predicted) const { return counts_[label * classes_ + predicted]; }
  std::span<std::int64_t> counts() { return counts_; }  // to sum over all ranks

  ClassResult result(std::size_t label) const;

  // The most frequent confusions, the most frequent first.
  struct Confusion {
    std::size_t label, predicted;
    std::int64_t count;
  };
  std::vector<Confusion> confusions(std::size_t most) const;

 private:
  std::size_t classes_;
  std::vector<std::int64_t> counts_;
};

// Returns the class with the largest logit: of equal ones the first; NaN is larger than any number.
std::size_t predicted_class(std::span<const float> logits);

}  // namespace annulus
