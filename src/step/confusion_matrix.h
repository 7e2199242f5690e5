#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace annulus {

// Counts the images of each class by the class that was predicted.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::size_t classes) : classes_(classes), counts_(classes * classes) {}

  void add(std::size_t label, std::size_t predicted) { ++counts_[label * classes_ + predicted]; }

  std::size_t classes() const { return classes_; }
  std::int64_t count(std::size_t label, std::size_t predicted) const { return counts_[label * classes_ + predicted]; }
  std::span<std::int64_t> counts() { return counts_; }  // to sum those of all ranks

  // How well a class is predicted.
  struct ClassResult {
    std::int64_t images = 0, predicted = 0, correct = 0;

    std::optional<double> precision() const { return share(correct, predicted); }  // of the images predicted as it
    std::optional<double> recall() const { return share(correct, images); }        // of its images
    std::optional<double> f1() const { return share(2 * correct, images + predicted); }  // their harmonic mean

   private:
    static std::optional<double> share(std::int64_t part, std::int64_t whole) {
      return whole > 0 ? std::optional(static_cast<double>(part) / static_cast<double>(whole)) : std::nullopt;
    }
  };
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
