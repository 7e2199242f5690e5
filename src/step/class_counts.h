#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace annulus {

// How well a class is predicted.
struct ClassResult {
  std::int64_t images = 0, predicted = 0, correct = 0;

  std::optional<double> precision() const { return share(correct, predicted); }        // of the images predicted as it
  std::optional<double> recall() const { return share(correct, images); }              // of the class's images
  std::optional<double> f1() const { return share(2 * correct, images + predicted); }  // their harmonic mean

 private:
  static std::optional<double> share(std::int64_t part, std::int64_t whole) {
    return whole > 0 ? std::optional(static_cast<double>(part) / static_cast<double>(whole)) : std::nullopt;
  }
};

// Counts for images of several classes how often each class is predicted: whenever the class's logit is above 0.
class ClassCounts {
 public:
  explicit ClassCounts(std::size_t classes) : counts_(3 * classes) {}

  // Adds images. `targets`: 1 for each of an image's classes, else 0; `logits` likewise.
  void add(std::span<const float> logits, std::span<const float> targets);

  std::size_t classes() const { return counts_.size() / 3; }
  std::span<std::int64_t> counts() { return counts_; }  // to sum over all ranks
  ClassResult result(std::size_t label) const {
    return {counts_[3 * label], counts_[3 * label + 1], counts_[3 * label + 2]};
  }
  // The mean over the classes that have the value; else 0.
  double mean_of(std::optional<double> (ClassResult::*value)() const) const;

 private:
  std::vector<std::int64_t> counts_;  // for each class: images, images predicted as it, and both
};

}  // namespace annulus
