#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/attention_plan.h"
#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// State that all operations on a device share.
struct Context {
  Precision precision;
  int multiprocessors;
  Stream lane;  // runs all work, in order
  std::unique_ptr<ConvolutionPlanner> convolutions;
  std::unique_ptr<MatmulPlanner> matmuls;
  std::unique_ptr<AttentionPlanner> attention;

  // Two floats in device memory: the factor of the loss's gradient (LossScaling), and 1 / that, the factor of
  // parameters' gradients. Both are 1 except in fp16.
  const float* loss_scale;
  const float* unscale;

  // A word in device memory that is nonzero in a step that must not update anything; null if there is no such step.
  const std::uint32_t* skip = nullptr;

  DataType type() const { return value_type(precision); }

  // Returns scratch memory, at least `bytes`, which the next operation may overwrite. To be called in bind(). Smaller
  // workspaces returned earlier stay valid, for graphs that have captured them.
  void* workspace(std::size_t bytes) {
    if (workspaces_.empty() || workspaces_.back().view().bytes < bytes) workspaces_.push_back(allocate_device(bytes));
    return workspaces_.back().view().address;
  }

 private:
  std::vector<Buffer> workspaces_;
};

}  // namespace annulus::cuda
