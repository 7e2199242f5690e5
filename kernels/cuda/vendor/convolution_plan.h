#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <filesystem>
#include <memory>

#include "kernels/cuda/vendor/convolution_problem.h"

namespace annulus::cuda {

// A layer's passes in training.
struct ConvolutionPasses {
  Forward forward{};
  BackwardData backward_data = BackwardData::written;
  BackwardWeights backward_weights = BackwardWeights::rounded;

  bool operator==(const ConvolutionPasses&) const = default;
};

// The batch norms beside a convolution, in training.
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

// Device memory for BackwardData::summed, in float32 one value for each channel. A batch norm with a ReLU, of the
// values x:
//   normalized = inverse (x - mean)
//   output = max(0, scale normalized + shift)
// The ReLU passes gradients of positive outputs. In BackwardData::summed_elsewhere, the sum of the stored output and
// scale normalized + shift must be positive, so scale and shift must be zeros. (cuDNN has no plans that read the stored
// output alone.)
struct NormGradient {
  float *mean, *inverse, *scale, *shift;  // read
  float *sum, *normalized_sum;            // written: of the gradient, and of the gradient times `normalized`
  // Results of the same operation of cuDNN, which we do not use: the gradient of x as a linear function of both.
  float *gradient_factor, *value_factor, *constant;
};

// Device memory, aligned to 16 bytes except for the factor. Input, weights and output are values or their gradients: a
// pass reads two of them and writes the third.
struct ConvolutionOperands {
  void *input, *weights, *output;
  void *scale = nullptr, *shift = nullptr;   // if it normalizes or ends a block: of each channel, in the value type
  void* norm_input = nullptr;                // if it ends a block or sums the gradient: the values x of the norm
  void* addend = nullptr;                    // if it ends a block
  void* norm_output = nullptr;               // this and the next: if it adds elsewhere
  void* gradient_of_others = nullptr;        // to which the input's gradient is added
  void *sums = nullptr, *squares = nullptr;  // if it has statistics: of each filter, float32
  NormGradient norm{};                       // if it sums the gradient
  const float* factor = nullptr;             // if it has wide weights: one value
};

class ConvolutionPlan {
 public:
  virtual ~ConvolutionPlan() = default;

  virtual std::size_t workspace_bytes() const = 0;

  // Returns immediately; the work is done in the stream. Results are bit-identical from run to run.
  virtual void run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) = 0;
};

class ConvolutionPlanner {
 public:
  virtual ~ConvolutionPlanner() = default;

  // Throws Error if there is no plan for the problem.
  virtual std::unique_ptr<ConvolutionPlan> plan(const ConvolutionProblem& problem) = 0;

  // Returns the layer's passes that are the fastest, together with separate passes for what they do not do. There is a
  // plan for each of them. They are chosen by measurements, so without a tuning file they do nothing besides.
  // REQUIRES: `layer` has 16-bit values, and no groups.
  virtual ConvolutionPasses choose_passes(const ConvolutionProblem& layer, const NormsBeside& norms) = 0;
};

// Makes a planner for the current device. Plans are chosen by the library's heuristics or, if `tuning` names a file, by
// measurements: problems that are not in the file yet are measured once and added to it.
std::unique_ptr<ConvolutionPlanner> make_convolution_planner(const std::filesystem::path& tuning = {});

}  // namespace annulus::cuda
