#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <filesystem>
#include <memory>

#include "kernels/base/extent.h"
#include "kernels/precision.h"

namespace annulus::cuda {

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

  // The size of a window.
  std::size_t window_height() const { return dilation.height * (kernel.height - 1) + 1; }
  std::size_t window_width() const { return dilation.width * (kernel.width - 1) + 1; }

  std::size_t output_height() const { return (height + padding.height() - window_height()) / stride.height + 1; }
  std::size_t output_width() const { return (width + padding.width() - window_width()) / stride.width + 1; }
};

class ConvolutionPlan {
 public:
  virtual ~ConvolutionPlan() = default;

  virtual std::size_t workspace_bytes() const = 0;

  // Input, weights and output are values or their gradients: a pass reads two of them and writes the third. They are
  // device memory, aligned to 16 bytes. Returns immediately; the work is done in the stream. Results are bit-identical
  // from run to run.
  virtual void run(void* input, void* weights, void* output, void* workspace, cudaStream_t stream) = 0;
};

class ConvolutionPlanner {
 public:
  virtual ~ConvolutionPlanner() = default;

  // Throws Error if there is no plan for the problem.
  virtual std::unique_ptr<ConvolutionPlan> plan(const ConvolutionProblem& problem) = 0;
};

// Makes a planner for the current device. Plans are chosen by the library's heuristics or, if `tuning` names a file, by
// measurements: problems that are not in the file yet are measured once and added to it.
std::unique_ptr<ConvolutionPlanner> make_convolution_planner(const std::filesystem::path& tuning = {});

}  // namespace annulus::cuda
