#include <algorithm>
#include <limits>

#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

class MaximumOp : public PlainOp {
 public:
  MaximumOp(const Maximum& operation, const TensorSpec& input)
      : PlainOp({input}, operation.output_shape({input.shape})),
        size_(input.shape.back()),
        rows_(elements(input.shape) / size_) {
    info_.backward_reads_output = true;
  }

 private:
  // NaN passes.
  void compute() override {
#pragma omp parallel for schedule(static)
    for (std::size_t row = 0; row < rows_; ++row) {
      const float* from = input(0) + row * size_;
      float largest = -std::numeric_limits<float>::infinity();
      bool nan = false;
#pragma omp simd reduction(max : largest) reduction(| : nan)
      for (std::size_t i = 0; i < size_; ++i) {
        largest = std::max(largest, from[i]);
        nan |= from[i] != from[i];
      }
      output()[row] = nan ? std::numeric_limits<float>::quiet_NaN() : largest;
    }
  }

  void differentiate() override {
#pragma omp parallel for schedule(static)
    for (std::size_t row = 0; row < rows_; ++row) {
      const float *x = input(0) + row * size_, y = output()[row], dy = output_gradient()[row];
      float* dx = input_gradient(0) + row * size_;
      std::size_t equal = 0;
#pragma omp simd reduction(+ : equal)
      for (std::size_t i = 0; i < size_; ++i) equal += x[i] == y;
      const float part = dy / static_cast<float>(std::max<std::size_t>(equal, 1));
      for (std::size_t i = 0; i < size_; ++i) dx[i] = x[i] == y ? part : 0;
    }
  }

  std::size_t size_, rows_;
};

}  // namespace

std::unique_ptr<Op> plan(const Maximum& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<MaximumOp>(operation, inputs[0]);
}

}  // namespace annulus::cpu
