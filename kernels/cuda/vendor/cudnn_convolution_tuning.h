#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/cudnn_convolution_plan.h"
#include "kernels/cuda/vendor/cudnn_tuning.h"
#include "kernels/cuda/vendor/tuning_budget.h"

namespace annulus::cuda {

// Chooses convolutions' plans, and the work that passes do besides, by times in a tuning file. Measures and adds what
// the file lacks, within the budget. After that an unmeasured fusion counts as slow, and the heuristics choose an
// unmeasured plan; both are added to the file, so later runs choose the same. All functions throw Error if something
// must be measured for a GPU that is not on this machine.
class ConvolutionTuner {
 public:
  // `platform`: see ConvolutionTuning.
  ConvolutionTuner(const Tuning& tuning, const std::string& platform, ConvolutionEngines& engines,
                   std::shared_ptr<TuningBudget> budget)
      : file_(tuning.file, platform), engines_(engines), fuses_(!tuning.deterministic), budget_(std::move(budget)) {}

  // Returns the fastest plan. Throws Error if there is none, or if the file's choice cannot be used.
  BuiltPointer fastest(const ConvolutionProblem& problem);

  // See ConvolutionPlanner.
  ConvolutionPasses choose_passes(const ConvolutionProblem& layer, const NormsBeside& norms);

 private:
  struct TimedPasses {
    ConvolutionPasses passes;
    double microseconds;  // with the batch norms' passes that are left
  };

  TimedPasses fastest_passes(const ConvolutionProblem& layer, const NormsBeside& norms, bool fuses);
  double data_microseconds(const ConvolutionProblem& layer, bool elsewhere);
  bool wide_weights_are_faster(const ConvolutionProblem& layer);
  double step_microseconds(const ConvolutionProblem& layer, const ConvolutionPasses& possible,
                           const ConvolutionPasses& passes);
  double microseconds(const ConvolutionProblem& problem);  // infinity if there is no usable plan
  double copy_microseconds(std::size_t bytes);

  // Returns the time stored under `name`; if there is none, adds the time that measure() returns.
  template <class Measure>
  double known_or(const std::string& name, const Measure& measure);

  double leave_out(const std::string& name);  // counts it as slow, from now on
  BuiltPointer first(const ConvolutionProblem& problem);
  BuiltPointer measure(const ConvolutionProblem& problem);
  void measure_own(const ConvolutionProblem& problem);  // throws Error if our product's results are wrong
  void expect_gpu(const std::string& name) const;

  ConvolutionTuning file_;
  ConvolutionEngines& engines_;
  const bool fuses_;  // chooses fused passes whose sums may differ from run to run
  const std::shared_ptr<TuningBudget> budget_;
};

}  // namespace annulus::cuda
