#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// What all operations of a device share.
struct Context {
  Precision precision;
  int multiprocessors;
  Stream lane;  // where everything runs, in order
  std::unique_ptr<ConvolutionPlanner> convolutions;
  std::unique_ptr<MatmulPlanner> matmuls;

  // Two floats of device memory: the scale that the loss's gradient is seeded with, and what takes it away again from
  // a parameter's gradient. Both 1 but in fp16.
  const float* loss_scale;
  const float* unscale;

  // A word of device memory that is not 0 where a step must not change anything; null: there never is such a step.
  const std::uint32_t* skip = nullptr;

  DataType type() const { return value_type(precision); }

  // Scratch of at least so many bytes, that the next operation may overwrite. To be asked for in bind(): earlier,
  // smaller ones stay valid, for graphs that have captured them.
  void* workspace(std::size_t bytes) {
    if (workspaces_.empty() || workspaces_.back().view().bytes < bytes) workspaces_.push_back(allocate_device(bytes));
    return workspaces_.back().view().address;
  }

 private:
  std::vector<Buffer> workspaces_;
};

}  // namespace annulus::cuda
