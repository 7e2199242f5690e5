#include "kernels/cuda/vendor/cudnn_convolution_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cudnn_convolution_graph.h"
#include "kernels/cuda/vendor/stopwatch.h"

namespace annulus::cuda {
namespace {

// Memory to measure a problem on.
class Scratch {
 public:
  explicit Scratch(const ConvolutionProblem& problem) {
    Addresses all{};
    for (const Operand operand : operands(problem)) {
      memory_[operand] = allocate_numbers(bytes(problem, operand));
      all[static_cast<std::size_t>(operand - kInput)] = memory_[operand].view().address;
    }
    operands_ = std::bit_cast<ConvolutionOperands>(all);
  }

  double measure(ConvolutionPlan& plan, double least = std::numeric_limits<double>::infinity()) {
    if (workspace_.view().bytes < plan.workspace_bytes()) workspace_ = allocate_device(plan.workspace_bytes());
    return stopwatch_.measure([&](cudaStream_t stream) { plan.run(operands_, workspace_.view().address, stream); },
                              least);
  }

 private:
  Stopwatch stopwatch_;
  std::map<Operand, Buffer> memory_;
  ConvolutionOperands operands_{};
  Buffer workspace_;
};

}  // namespace

BuiltPointer ConvolutionTuner::fastest(const ConvolutionProblem& problem) {
  const std::string name = to_string(problem);
  const auto known = file_.find(name);
  if (known && known->unmeasured) budget_->meet_unmeasured();
  if (!known || !known->choice) return budget_->spent() ? first(problem) : measure(problem);
  try {
    return engines_.build(problem, *known->choice);
  } catch (const Error& error) {
    fail("{}: {} is not usable for a {} ({}): delete the file to measure again", file_.file().string(),
         to_string(*known->choice), name, error.what());
  }
}

// Returns the plan that the heuristics expect to be the fastest.
BuiltPointer ConvolutionTuner::first(const ConvolutionProblem& problem) {
  BuiltPointer built = engines_.usable(problem, 1).front();
  budget_->leave_out();
  file_.add(to_string(problem), {.choice = built->configuration.choice, .unmeasured = true});
  return built;
}

ConvolutionPasses ConvolutionTuner::choose_passes(const ConvolutionProblem& layer, const NormsBeside& beside) {
  const NormsBeside norms = fuses_ ? beside : NormsBeside{};
  const bool elsewhere = norms.before == NormsBeside::block_end;
  const bool summed = norms.before != NormsBeside::none && summed_is_faster(layer, elsewhere);
  const ConvolutionPasses with_statistics{.forward = {.statistics = norms.after}};
  ConvolutionPasses all = with_statistics;
  if (norms.before == NormsBeside::rectified) {
    all.forward.input = Forward::normalized;
    all.backward_weights = BackwardWeights::of_normalized;
  }
  if (elsewhere && summed) all.forward.input = Forward::block_end;  // else backward needs the bits of the ReLU
  const auto cost = [&](const ConvolutionPasses& passes) { return step_microseconds(layer, all, passes); };
  ConvolutionPasses passes = std::ranges::min(std::array{ConvolutionPasses{}, with_statistics, all}, {}, cost);
  if (summed) passes.backward_data = elsewhere ? BackwardData::summed_elsewhere : BackwardData::summed;
  if (layer.is_product() && passes.backward_weights == BackwardWeights::rounded && wide_weights_are_faster(layer))
    passes.backward_weights = BackwardWeights::wide;
  return passes;
}

// Returns the time of forward and backward_weights, plus a batch norm pass for work that is possible and not done: the
// norm before the convolution reads and writes the input, at a block's end reads the addend too, and the norm after the
// convolution reads the output. Reading or writing takes at least half a copy's time.
double ConvolutionTuner::step_microseconds(const ConvolutionProblem& layer, const ConvolutionPasses& possible,
                                           const ConvolutionPasses& passes) {
  double sum = microseconds(layer.with(passes.forward));
  if (possible.forward.input == Forward::normalized) sum += microseconds(layer.with(passes.backward_weights));
  if (passes.forward.input != possible.forward.input)
    sum += (possible.forward.input == Forward::block_end ? 1.5 : 1) * copy_microseconds(bytes(layer, kInput));
  if (possible.forward.statistics && !passes.forward.statistics) sum += copy_microseconds(bytes(layer, kOutput)) / 2;
  return sum;
}

// Apart, a batch norm pass reads two values per input value, which takes at least a copy's time. At a block's end, the
// next pass also writes the addend's gradient, which then differs from the output's.
bool ConvolutionTuner::summed_is_faster(const ConvolutionProblem& layer, bool elsewhere) {
  const double copies = elsewhere ? 1.5 : 1;
  return microseconds(layer.with(elsewhere ? BackwardData::summed_elsewhere : BackwardData::summed)) <
         microseconds(layer.with(elsewhere ? BackwardData::added : BackwardData::written)) +
             copies * copy_microseconds(bytes(layer, kInput));
}

template <class Measure>
double ConvolutionTuner::known_or(const std::string& name, const Measure& measure) {
  if (const auto known = file_.find(name)) return known->microseconds;
  if (budget_->spent()) return leave_out(name);
  expect_gpu(name);
  const TuningBudget::Spending spending(*budget_);
  const double microseconds = measure();
  file_.add(name, {.microseconds = microseconds});
  return microseconds;
}

double ConvolutionTuner::leave_out(const std::string& name) {
  budget_->leave_out();
  file_.add(name, {.unmeasured = true});
  return std::numeric_limits<double>::infinity();
}

// Apart, a pass reads the gradient in 16 bits and writes it in 32: as many bytes as copying 3/2 gradients.
bool ConvolutionTuner::wide_weights_are_faster(const ConvolutionProblem& layer) {
  const ConvolutionProblem wide = layer.with(BackwardWeights::wide);
  const double apart = microseconds(layer.with(BackwardWeights::rounded)) +
                       copy_microseconds(bytes(layer.with(BackwardWeights::rounded), kWeights) / 2 * 3);
  const auto measure = [&] {
    try {
      return Scratch(wide).measure(*engines_.plan_product(wide));
    } catch (const Error&) {
      return std::numeric_limits<double>::infinity();
    }
  };
  return known_or(to_string(wide), measure) < apart;
}

double ConvolutionTuner::microseconds(const ConvolutionProblem& problem) {
  const std::string name = to_string(problem);
  if (!file_.find(name)) {
    if (budget_->spent()) return leave_out(name);
    expect_gpu(name);
    try {
      measure(problem);
    } catch (const Error&) {
      file_.add(name, {});
    }
  }
  return file_.find(name)->microseconds;
}

double ConvolutionTuner::copy_microseconds(std::size_t bytes) {
  return known_or(fmt::format("copy of {} bytes", bytes), [&] {
    const Buffer from = allocate_device(bytes), to = allocate_device(bytes);
    return Stopwatch().measure([&](cudaStream_t stream) {
      check(cudaMemcpyAsync(to.view().address, from.view().address, bytes, cudaMemcpyDeviceToDevice, stream));
    });
  });
}

BuiltPointer ConvolutionTuner::measure(const ConvolutionProblem& problem) {
  constexpr std::size_t kMostFused = 3;  // which are compiled, 1 to 3 s each
  expect_gpu(to_string(problem));
  budget_->begin_problem();
  const TuningBudget::Spending spending(*budget_);
  Scratch scratch(problem);
  BuiltPointer best;
  double least = std::numeric_limits<double>::infinity();
  std::string objection;
  const std::size_t most = problem.is_fused() ? kMostFused : std::numeric_limits<std::size_t>::max();
  for (const BuiltPointer& built : engines_.usable(problem, most)) {
    if (best && budget_->spent()) break;
    try {
      const auto plan = engines_.plan(built);
      const double microseconds = scratch.measure(*plan, least);
      if (microseconds >= least) continue;
      least = microseconds;
      best = built;
    } catch (const Error& error) {  // a plan does not run, or there is not enough memory for its workspace
      objection = error.what();
    }
  }
  if (!best) fail("none of cuDNN's plans for a {} can be measured ({})", to_string(problem), objection);
  file_.add(to_string(problem), {best->configuration.choice, least});
  return best;
}

void ConvolutionTuner::expect_gpu(const std::string& name) const {
  if (!engines_.can_run())
    fail("{} has no entry for a {}, and there is no GPU here to measure on", file_.file().string(), name);
}

}  // namespace annulus::cuda
