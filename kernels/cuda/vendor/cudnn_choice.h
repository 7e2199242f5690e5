#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/cuda/vendor/cudnn_tuning.h"
#include "kernels/cuda/vendor/tuning_budget.h"

namespace annulus::cuda {

// Chooses among a library's candidates for a problem by the times in a tuning file.
class TunedChoice {
 public:
  // `platform`: see ConvolutionTuning.
  TunedChoice(const std::filesystem::path& file, std::string platform, std::shared_ptr<TuningBudget> budget)
      : file_(file, std::move(platform)), budget_(std::move(budget)) {}

  // Returns the file's choice, if there is one.
  std::optional<cudnn::Choice> known(const std::string& problem) const;

  // Measures a candidate, in microseconds. May return early with a larger time than `least`. Throws Error if the
  // candidate does not run.
  using Measure = std::function<double(std::size_t candidate, double least)>;

  // Returns the number of the file's choice or, if the file has none, of the fastest candidate. When the budget is
  // spent, that is the first candidate. Adds the choice to the file, measured or not: so later runs choose the same.
  // Throws Error if the file's choice is not among the candidates, or if none can be measured.
  std::size_t fastest(const std::string& problem, std::span<const cudnn::Choice> candidates, const Measure& measure);

 private:
  std::size_t measure_all(const std::string& problem, std::span<const cudnn::Choice> candidates,
                          const Measure& measure);

  ConvolutionTuning file_;
  std::shared_ptr<TuningBudget> budget_;
};

}  // namespace annulus::cuda
