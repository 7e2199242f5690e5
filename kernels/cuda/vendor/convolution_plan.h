#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <filesystem>
#include <memory>

#include "kernels/base/extent.h"
#include "kernels/precision.h"

namespace annulus::cuda {

// Passes over memory that a convolution in training does, while it has the values in registers anyway: for the batch
// norms beside it, and for its own weights' gradient.
struct ConvolutionFusion {
  // Of forward and backward_weights: the input is max(0, scale x + shift) of the input's values x, rounded to the value
  // type.
  bool normalized = false;
  // Of forward: the input is max(0, scale x + shift + addend), as at the end of a residual block, and is also written,
  // because others read it.
  bool ends_block = false;
  // Of forward: for each filter, the sum of the output's values and that of their squares.
  bool statistics = false;
  // Of backward_data: the input's values are the output of a batch norm with a ReLU. Writes the gradient of what the
  // ReLU reads, instead of the input's gradient, and for each channel its sums (NormGradient). If it accumulates, it
  // adds to a gradient in other memory, and finds out from the input's values where the ReLU was active: so the batch
  // norm may be the end of a residual block, which adds before the ReLU.
  bool gradient_sums = false;
  // Of backward_weights: writes the weights' gradient in float32 and multiplied by a factor, with no rounding to the
  // value type before it. Not of a normalized input, and only if the pass is_product() or has groups.
  bool wide_weights = false;

  bool any() const { return normalized || ends_block || statistics || gradient_sums || wide_weights; }
  bool operator==(const ConvolutionFusion&) const = default;
};

// One pass of a convolution over tensors in NHWC order, weights in {filters, rows, columns, channels}, all dense and
// of the precision's value type, channels a multiple of the number that 16 bytes hold. Sums are computed in float32.
struct ConvolutionProblem {
  enum class Pass { forward, backward_data, backward_weights };

  Pass pass;
  Precision precision;
  std::size_t batch, channels, height, width;  // of the input
  std::size_t filters;
  Extent kernel;
  Extent stride;
  Border padding;
  Extent dilation = 1;
  bool accumulate = false;  // of backward_data: adds to the input's gradient
  ConvolutionFusion fusion{};

  // Returns another pass of the same layer, with what concerns it of this one's fusions.
  ConvolutionProblem with(Pass other) const {
    ConvolutionProblem changed = *this;
    changed.pass = other;
    changed.accumulate = accumulate && other == Pass::backward_data;
    changed.fusion = {.normalized = fusion.normalized && other != Pass::backward_data,
                      .ends_block = fusion.ends_block && other == Pass::forward,
                      .statistics = fusion.statistics && other == Pass::forward,
                      .gradient_sums = fusion.gradient_sums && other == Pass::backward_data,
                      .wide_weights = fusion.wide_weights && other == Pass::backward_weights};
    return changed;
  }

  // Whether it adds to a gradient in other memory.
  bool adds_elsewhere() const { return accumulate && fusion.gradient_sums; }

  // Whether the passes are products of matrices, whose rows are the pixels of all images.
  bool is_product() const { return kernel == 1 && stride == 1 && padding == 0; }

  // The size of a window.
  std::size_t window_height() const { return dilation.height * (kernel.height - 1) + 1; }
  std::size_t window_width() const { return dilation.width * (kernel.width - 1) + 1; }

  std::size_t output_height() const { return (height + padding.height() - window_height()) / stride.height + 1; }
  std::size_t output_width() const { return (width + padding.width() - window_width()) / stride.width + 1; }
};

// Device memory for gradient_sums, in float32 one value for each channel. A batch norm with a ReLU, of the values x:
//   normalized = inverse (x - mean)
//   output = max(0, scale normalized + shift)
// The ReLU passes gradients of positive outputs. If the pass accumulates, it is the sum of the stored output and scale
// normalized + shift that must be positive, so scale and shift must be zeros. (cuDNN has no plans that read the stored
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
  void *scale = nullptr, *shift = nullptr;   // if normalized or ends_block: of each channel, in the value type
  void *sums = nullptr, *squares = nullptr;  // if it computes statistics: of each filter, float32
  void* norm_input = nullptr;                // if it ends a block or computes gradient sums: the values x of the norm
  void* addend = nullptr;                    // if it ends a block
  void* norm_output = nullptr;               // this and the next: if it also accumulates
  void* gradient_of_others = nullptr;        // to which the input's gradient is added
  NormGradient norm{};
  const float* factor = nullptr;  // if it writes wide weights: one value
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

  // Returns which of the possible fusions make the passes of `problem` the fastest, together with separate passes for
  // all others. There is a plan for each of them. They are chosen by measurements, so without a tuning file none is.
  // REQUIRES: `problem` has 16-bit values and no fusion.
  virtual ConvolutionFusion choose_fusion(const ConvolutionProblem& problem, const ConvolutionFusion& possible) = 0;
};

// Makes a planner for the current device. Plans are chosen by the library's heuristics or, if `tuning` names a file, by
// measurements: problems that are not in the file yet are measured once and added to it.
std::unique_ptr<ConvolutionPlanner> make_convolution_planner(const std::filesystem::path& tuning = {});

}  // namespace annulus::cuda
