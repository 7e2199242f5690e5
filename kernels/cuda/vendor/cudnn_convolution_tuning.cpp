#include "kernels/cuda/vendor/cudnn_convolution_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/cudnn_convolution_graph.h"
#include "kernels/cuda/vendor/own_product_check.h"
#include "kernels/cuda/vendor/stopwatch.h"

namespace annulus::cuda {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Returns whether a pass is faster than a measured one; false if that one was not measured.
bool is_faster(double microseconds, double than) {
  return std::isfinite(than) && microseconds < than;
}

// Memory to measure a problem on.
class Scratch {
 public:
  explicit Scratch(const ConvolutionProblem& problem) {
    Addresses all{};
    for (const Operand operand : operands(problem)) {
      if (memory_.contains(operand)) continue;
      memory_[operand] = allocate_numbers(bytes(problem, operand));
      all[static_cast<std::size_t>(operand - kInput)] = memory_[operand].view().address;
    }
    operands_ = std::bit_cast<ConvolutionOperands>(all);
  }

  double measure(ConvolutionPlan& plan, double least = kNever) {
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

ConvolutionPasses ConvolutionTuner::choose_passes(const ConvolutionProblem& layer, const NormsBeside& norms) {
  const bool library = fuses_ && layer.precision == Precision::fp16;  // cuDNN has no such plans in bf16
  const bool own = norms != NormsBeside{} && (engines_.can_run() ? has_own_product(layer) : is_own_product(layer));
  // Our products are compared with complete alternatives: the passes plus the norms' separate passes.
  TimedPasses best = fastest_passes(layer, library || own ? norms : NormsBeside{}, library);
  if (own) {
    ConvolutionProblem ours = layer;
    ours.own_products = true;
    const TimedPasses timed = fastest_passes(ours, norms, true);
    if (is_faster(timed.microseconds, best.microseconds)) best = timed;
  }
  if (layer.is_product() && best.passes.backward_weights == BackwardWeights::rounded && wide_weights_are_faster(layer))
    best.passes.backward_weights = BackwardWeights::wide;
  return best.passes;
}

// `fuses`: whether passes may be fused; if not, `norms` only count in the time.
ConvolutionTuner::TimedPasses ConvolutionTuner::fastest_passes(const ConvolutionProblem& layer,
                                                               const NormsBeside& norms, bool fuses) {
  const bool elsewhere = norms.before == NormsBeside::block_end;
  const double data = norms.before == NormsBeside::none ? 0 : data_microseconds(layer, elsewhere);
  const BackwardData pass = elsewhere ? BackwardData::summed_elsewhere : BackwardData::summed;
  const double with_sums = norms.before == NormsBeside::none || !fuses ? kNever : microseconds(layer.with(pass));
  const bool summed = is_faster(with_sums, data);
  ConvolutionPasses possible{.forward = {.statistics = norms.after}};
  ConvolutionPasses with_statistics = possible, all = possible;
  with_statistics.own_products = all.own_products = layer.own_products;
  if (elsewhere) possible.forward.input = Forward::block_end;
  if (norms.before == NormsBeside::rectified) possible.forward.input = Forward::normalized;
  // At a block's end backward else needs the bits of the ReLU. Ours computes inputs only along with statistics: so the
  // output is read in backward, and if it is recomputed, the input is, too.
  if (elsewhere ? summed : !layer.own_products || norms.after) all.forward.input = possible.forward.input;
  if (all.forward.input == Forward::normalized && !layer.own_products)
    all.backward_weights = BackwardWeights::of_normalized;
  std::vector<ConvolutionPasses> candidates{ConvolutionPasses{}};
  if (fuses) candidates.insert(candidates.end(), {with_statistics, all});
  const auto cost = [&](const ConvolutionPasses& passes) { return step_microseconds(layer, possible, passes); };
  ConvolutionPasses passes = candidates.front();
  double forward = cost(passes);
  for (const ConvolutionPasses& others : candidates)
    if (const double time = cost(others); is_faster(time, forward)) {
      passes = others;
      forward = time;
    }
  if (summed) {
    passes.backward_data = pass;
    passes.own_products = layer.own_products;
  }
  return {passes, forward + std::min(data, with_sums)};
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

// Returns the time of backward_data without the gradient's sums, plus a batch norm pass that reads two values per input
// value, which takes at least a copy's time. At a block's end, the next pass also writes the addend's gradient, which
// then differs from the output's.
double ConvolutionTuner::data_microseconds(const ConvolutionProblem& layer, bool elsewhere) {
  const double copies = elsewhere ? 1.5 : 1;
  return microseconds(layer.with(elsewhere ? BackwardData::added : BackwardData::written)) +
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
      return kNever;
    }
  };
  return is_faster(known_or(to_string(wide), measure), apart);
}

double ConvolutionTuner::microseconds(const ConvolutionProblem& problem) {
  const std::string name = to_string(problem);
  if (!file_.find(name)) {
    if (problem.is_own() && !engines_.can_run()) return kNever;
    if (budget_->spent()) return leave_out(name);
    expect_gpu(name);
    try {
      problem.is_own() ? measure_own(problem) : static_cast<void>(measure(problem));
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
  double least = kNever;
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

void ConvolutionTuner::measure_own(const ConvolutionProblem& problem) {
  budget_->begin_problem();
  const TuningBudget::Spending spending(*budget_);
  if (!own_product_agrees(problem)) fail("a {} has wrong results", to_string(problem));
  file_.add(to_string(problem), {.microseconds = Scratch(problem).measure(*plan_own_product(problem))});
}

void ConvolutionTuner::expect_gpu(const std::string& name) const {
  if (!engines_.can_run())
    fail("{} has no entry for a {}, and there is no GPU here to measure on", file_.file().string(), name);
}

}  // namespace annulus::cuda
