#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

class PReluOp : public PlainOp {
 public:
  PReluOp(const PRelu& operation, const TensorSpec& input)
      : PlainOp({input}, input.shape), per_channel_(operation.per_channel) {
    const Shape& in = input.shape;
    declare(operation.parameters({in}));
    channels_ = per_channel_ ? in[1] : 1;
    pixels_ = elements(in) / (per_channel_ ? in[0] * in[1] : 1);
    rows_ = elements(in) / pixels_;
    sums_.resize(rows_);
  }

 private:
  std::size_t slope(std::size_t row) const { return row % channels_; }

  void compute() override {
#pragma omp parallel for schedule(static)
    for (std::size_t row = 0; row < rows_; ++row) {
      const float* x = input(0) + row * pixels_;
      float* y = output() + row * pixels_;
      const float a = parameter(0)[slope(row)];
      for (std::size_t i = 0; i < pixels_; ++i) y[i] = x[i] < 0 ? a * x[i] : x[i];
    }
  }

  void differentiate() override {
#pragma omp parallel for schedule(static)
    for (std::size_t row = 0; row < rows_; ++row) {
      const float *x = input(0) + row * pixels_, *dy = output_gradient() + row * pixels_;
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::size_t i = 0; i < pixels_; ++i) sum += static_cast<double>(x[i] < 0 ? dy[i] * x[i] : 0);
      sums_[row] = sum;
      if (input_gradient(0) == nullptr) continue;
      float* dx = input_gradient(0) + row * pixels_;
      const float a = parameter(0)[slope(row)];
      for (std::size_t i = 0; i < pixels_; ++i) dx[i] = x[i] > 0 ? dy[i] : a * dy[i];
    }
    for (std::size_t c = 0; trains_parameters() && c < channels_; ++c) {
      double sum = 0;
      for (std::size_t row = c; row < rows_; row += channels_) sum += sums_[row];
      parameter_gradient(0)[c] = static_cast<float>(sum);
    }
  }

  bool per_channel_;
  std::size_t channels_, pixels_, rows_;
  std::vector<double> sums_;  // the slope's gradient, for each row
};

}  // namespace

std::unique_ptr<Op> plan(const PRelu& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<PReluOp>(operation, inputs[0]);
}

}  // namespace annulus::cpu
