#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/cuda/vendor/convolution_problem.h"
#include "kernels/device.h"

namespace annulus::cuda {

// Says which passes a layer runs in training.
struct ConvolutionPasses {
  Forward forward{};
  BackwardData backward_data = BackwardData::written;
  BackwardWeights backward_weights = BackwardWeights::rounded;
  bool own_products = false;  // ConvolutionProblem::own_products

  bool operator==(const ConvolutionPasses&) const = default;
};

// Describes the batch norms beside a convolution, in training.
struct NormsBeside {
  enum Before {
    none,
    rectified,  // the input is max(0, scale x + shift), and nothing else reads it
    block_end,  // the input is max(0, scale x + shift + addend), and other operations read it, too
  };

  Before before = none;
  bool after = false;  // alone reads the output, and needs statistics

  bool operator==(const NormsBeside&) const = default;
};

// cuDNN's ReLU passes gradients at 0, too (measured on an H200). A shift lower by half of float16's smallest number
// excludes 0, and no positive output.
inline constexpr float kShiftBelowZero = -0x1p-25f;

// Device memory for BackwardData::summed, a float32 value per channel. A batch norm with a ReLU, on values x:
//   normalized = inverse (x - mean)
//   output = max(0, scale normalized + shift)
// BackwardData::summed passes gradients if scale normalized + shift >= 0, so `shift` contains kShiftBelowZero.
// BackwardData::summed_elsewhere adds the stored output to that sum, so scale must be 0, and shift kShiftBelowZero.
// (cuDNN has no plans that read the stored output alone.)
struct NormGradient {
  float *mean, *inverse, *scale, *shift;  // read
  float *sum, *normalized_sum;            // written: sum the gradient, and the gradient times `normalized`
  // Further results from the same cuDNN operation, which we do not use: x's gradient as a linear function of both.
  float *gradient_factor, *value_factor, *constant;
};

// Device memory, aligned to 16 bytes except for the factor. Input, weights and output are values or gradients: a pass
// reads two and writes the third.
struct ConvolutionOperands {
  void *input, *weights, *output;
  // If the pass normalizes or ends a block: per channel, in the value type. Of our products in float32; then also if
  // the pass sums the gradient and does not add elsewhere.
  void *scale = nullptr, *shift = nullptr;
  void* norm_input = nullptr;                // the norm's x, if it ends a block, sums the gradient, or is_own()
  void* addend = nullptr;                    // if it ends a block
  void* norm_output = nullptr;               // this and the next: if the pass adds elsewhere
  void* gradient_of_others = nullptr;        // added to the input's gradient
  void *sums = nullptr, *squares = nullptr;  // if it has statistics: per filter, float32
  NormGradient norm{};                       // if it sums the gradient
  const float* factor = nullptr;             // if it has wide weights: a single value
};

class ConvolutionPlan {
 public:
  virtual ~ConvolutionPlan() = default;

  virtual std::size_t workspace_bytes() const = 0;

  // Returns immediately; the stream does the work. Results are bit-identical from run to run, except for cuDNN's sums
  // in fused passes: on an H200 cuDNN adds up large tensors' statistics and gradients in no fixed order.
  virtual void run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) = 0;
};

class ConvolutionPlanner {
 public:
  virtual ~ConvolutionPlanner() = default;

  // Throws Error if there is no plan for the problem.
  virtual std::unique_ptr<ConvolutionPlan> plan(const ConvolutionProblem& problem) = 0;

  // Returns the layer's fastest passes. The time of a pass that fuses less includes the separate passes that it needs.
  // Chooses by measured times: without a tuning file nothing is fused, by cuDNN only in fp16 and if tuning need not be
  // deterministic, by our products only if their results are right. REQUIRES: `layer` has 16-bit values, and no groups.
  virtual ConvolutionPasses choose_passes(const ConvolutionProblem& layer, const NormsBeside& norms) = 0;
};

class TuningBudget;

// Plans a problem that is_own(), a product by our kernel (kernels/cuda/ops/product), in 16 bits. A Forward::normalized
// input is also written to ConvolutionOperands::input, as at a block's end. Throws Error if there is no kernel for the
// problem, or not on the current device.
std::unique_ptr<ConvolutionPlan> plan_own_product(const ConvolutionProblem& problem);
bool is_own_product(const ConvolutionProblem& layer);   // whether there is a kernel for the layer, on some device
bool has_own_product(const ConvolutionProblem& layer);  // whether it was built for the current device

// Makes a planner for the current device. Chooses plans by the library's heuristics or, if `tuning` names a file, by
// measurements: measures problems missing in the file once, within the budget, and adds them.
std::unique_ptr<ConvolutionPlanner> make_convolution_planner(const Tuning& tuning = {},
                                                             std::shared_ptr<TuningBudget> budget = nullptr);

// Returns all plans that tuning could choose on the current device, for tests. Throws Error if there is none.
std::vector<std::unique_ptr<ConvolutionPlan>> all_convolution_plans(const ConvolutionProblem& problem);

}  // namespace annulus::cuda
