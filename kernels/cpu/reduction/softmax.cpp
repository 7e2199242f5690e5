#include <algorithm>

#include "kernels/cpu/loops/math.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

class SoftmaxOp : public PlainOp {
 public:
  explicit SoftmaxOp(const TensorSpec& input)
      : PlainOp({input}, input.shape), size_(input.shape.back()), rows_(elements(input.shape) / size_) {
    info_.inputs = {{.backward_reads = false, .output_may_overwrite = true, .gradient_may_overwrite = true}};
    info_.backward_reads_output = true;
  }

 private:
  void compute() override {
#pragma omp parallel for schedule(static)
    for (std::size_t row = 0; row < rows_; ++row) {
      const float* from = input(0) + row * size_;
      float* to = output() + row * size_;
      const float largest = *std::max_element(from, from + size_);
      for (std::size_t i = 0; i < size_; ++i) to[i] = exponential(from[i] - largest);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::size_t i = 0; i < size_; ++i) sum += to[i];
      for (std::size_t i = 0; i < size_; ++i) to[i] /= sum;
    }
  }

  // dx = y (dy - sum(y dy)).
  void differentiate() override {
#pragma omp parallel for schedule(static)
    for (std::size_t row = 0; row < rows_; ++row) {
      const float *y = output() + row * size_, *dy = output_gradient() + row * size_;
      float* dx = input_gradient(0) + row * size_;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::size_t i = 0; i < size_; ++i) sum += y[i] * dy[i];
      for (std::size_t i = 0; i < size_; ++i) dx[i] = y[i] * (dy[i] - sum);
    }
  }

  std::size_t size_, rows_;
};

}  // namespace

std::unique_ptr<Op> plan(const Softmax&, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<SoftmaxOp>(inputs[0]);
}

}  // namespace annulus::cpu
