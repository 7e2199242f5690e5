#include <algorithm>
#include <cmath>

#include "kernels/base/split.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

// How many partial sums of the parameters' gradients are kept apart. The number does not depend on the thread count, so
// neither do the results.
constexpr std::size_t kParts = 16;

class LayerNormOp : public PlainOp {
 public:
  LayerNormOp(const LayerNorm& operation, const TensorSpec& input)
      : PlainOp({input}, output_shape(operation, {input.shape})),
        epsilon_(operation.epsilon),
        centred_(operation.centred) {
    const auto declared = operation.parameters({input.shape});
    declare(declared);
    size_ = elements(declared[0].shape);
    rows_ = elements(input.shape) / size_;
    need_scratch(2 * kParts * size_ * sizeof(float));
  }

 private:
  bool shifts() const { return info_.parameters.size() > 1; }

  // Not when it is planned: images may be too large to be processed here.
  void bound() override {
    mean_.resize(rows_);
    factor_.resize(rows_);
  }

  void compute() override {
    const float *scale = parameter(0), *shift = shifts() ? parameter(1) : nullptr;
#pragma omp parallel for schedule(static)
    for (std::size_t row = 0; row < rows_; ++row) {
      const float* x = input(0) + row * size_;
      float* y = output() + row * size_;
      const float mean = centred_ ? mean_of(x) : 0;
      float squares = 0;
#pragma omp simd reduction(+ : squares)
      for (std::size_t i = 0; i < size_; ++i) squares += (x[i] - mean) * (x[i] - mean);
      const float factor = 1 / std::sqrt(squares / static_cast<float>(size_) + epsilon_);
      mean_[row] = mean;
      factor_[row] = factor;
      if (shift != nullptr)
        for (std::size_t i = 0; i < size_; ++i) y[i] = (x[i] - mean) * factor * scale[i] + shift[i];
      else
        for (std::size_t i = 0; i < size_; ++i) y[i] = (x[i] - mean) * factor * scale[i];
    }
  }

  float mean_of(const float* x) const {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::size_t i = 0; i < size_; ++i) sum += x[i];
    return sum / static_cast<float>(size_);
  }

  // With n = (x - mean) factor and g = dy scale: dx = factor (g - mean(g) - n mean(g n)). If not centred, there is no
  // mean(g).
  void differentiate() override {
    const float* scale = parameter(0);
    const std::span<float> sums = floats(own_scratch());
#pragma omp parallel for schedule(static)
    for (std::size_t part = 0; part < kParts; ++part) {
      float *to_scale = sums.data() + 2 * part * size_, *to_shift = to_scale + size_;
      std::fill_n(to_scale, 2 * size_, 0.0f);
      const Range rows = split(rows_, kParts, part);
      for (std::size_t row = rows.begin; row < rows.end; ++row) {
        const float *x = input(0) + row * size_, *dy = output_gradient() + row * size_;
        const float mean = mean_[row], factor = factor_[row];
        float sum = 0, products = 0;
#pragma omp simd reduction(+ : sum, products)
        for (std::size_t i = 0; i < size_; ++i) {
          const float normalized = (x[i] - mean) * factor, g = dy[i] * scale[i];
          sum += g;
          products += g * normalized;
          to_scale[i] += dy[i] * normalized;
          to_shift[i] += dy[i];
        }
        if (input_gradient(0) == nullptr) continue;
        float* dx = input_gradient(0) + row * size_;
        const float a = centred_ ? sum / static_cast<float>(size_) : 0, b = products / static_cast<float>(size_);
        for (std::size_t i = 0; i < size_; ++i) dx[i] = factor * (dy[i] * scale[i] - a - (x[i] - mean) * factor * b);
      }
    }
    for (std::size_t p = 0; trains_parameters() && p < info_.parameters.size(); ++p) {
      float* to = parameter_gradient(p);
      std::copy_n(sums.data() + p * size_, size_, to);
      for (std::size_t part = 1; part < kParts; ++part)
        for (std::size_t i = 0; i < size_; ++i) to[i] += sums[(2 * part + p) * size_ + i];
    }
  }

  float epsilon_;
  bool centred_;
  std::size_t size_, rows_;
  std::vector<float> mean_, factor_;  // each row's
};

}  // namespace

std::unique_ptr<Op> plan(const LayerNorm& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<LayerNormOp>(operation, inputs[0]);
}

}  // namespace annulus::cpu
