#pragma once

#include <cuda_runtime.h>

#include <compare>
#include <cstddef>
#include <memory>

#include "kernels/device.h"

namespace annulus::cuda {

// Describes an attention pass (kernels/operations/attention.h) in bf16 or fp16. Sums are computed in float32.
struct AttentionProblem {
  enum class Pass { inference, forward, backward };

  Pass pass;
  Precision precision;
  bool causal;
  std::size_t batch, heads, length;
  std::size_t each;                   // a head's width
  std::size_t input_row, output_row;  // values from a token to the next; at least 3 x heads x each, and heads x each

  auto operator<=>(const AttentionProblem&) const = default;
};

// Device memory, aligned to 16 bytes. Inference needs only the first two; forward also writes `sums`, and backward
// writes `products` and the input's gradient.
struct AttentionOperands {
  const void* input;
  void* output;
  float* sums;      // per query, the logarithm of the exponentials' sum: {batch, heads, length}
  float* products;  // per query, the product of output and output gradient: {batch, heads, length}
  const void* output_gradient;
  void* input_gradient;
};

class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;

  virtual std::size_t workspace_bytes() const = 0;

  // Returns immediately; the stream does the work. Results are bit-identical from run to run, unless the planner allows
  // others. Does not write padding between tokens.
  virtual void run(const AttentionOperands& operands, void* workspace, cudaStream_t stream) = 0;
};

class AttentionPlanner {
 public:
  virtual ~AttentionPlanner() = default;

  // Returns null if the vendor's library has no plan for the problem.
  virtual std::unique_ptr<AttentionPlan> plan(const AttentionProblem& problem) = 0;
};

class TuningBudget;

// Makes a planner for the current device. Chooses plans by the library's heuristics or, if `tuning` names a file, by
// measurements: measures problems missing in the file once, within the budget, and adds them. Only then, and if tuning
// need not be deterministic, backward's results may differ from run to run.
std::unique_ptr<AttentionPlanner> make_attention_planner(const Tuning& tuning = {},
                                                         std::shared_ptr<TuningBudget> budget = nullptr);

}  // namespace annulus::cuda
