#include <cmath>

#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

class GroupNormOp : public PlainOp {
 public:
  GroupNormOp(const GroupNorm& operation, const TensorSpec& input)
      : PlainOp({input}, output_shape(operation, {input.shape})),
        epsilon_(operation.epsilon),
        batch_(input.shape[0]),
        channels_(input.shape[1]),
        groups_(operation.groups),
        pixels_(elements(input.shape) / (batch_ * channels_)),
        mean_(batch_ * groups_),
        factor_(batch_ * groups_),
        gradient_sums_(batch_ * channels_),
        product_sums_(batch_ * channels_) {
    declare(operation.parameters({input.shape}));
  }

 private:
  // Calls body(group's index among all samples' groups, first channel, first element).
  template <class Body>
  void for_each_group(const Body& body) const {
    const std::size_t each = channels_ / groups_;
#pragma omp parallel for schedule(static)
    for (std::size_t group = 0; group < batch_ * groups_; ++group)
      body(group, group % groups_ * each, group * each * pixels_);
  }

  void compute() override {
    const std::size_t each = channels_ / groups_, size = each * pixels_;
    for_each_group([&](std::size_t group, std::size_t channel, std::size_t first) {
      const float* x = input(0) + first;
      double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
      for (std::size_t i = 0; i < size; ++i) sum += static_cast<double>(x[i]);
      const auto mean = static_cast<float>(sum / static_cast<double>(size));
#pragma omp simd reduction(+ : squares)
      for (std::size_t i = 0; i < size; ++i) squares += static_cast<double>((x[i] - mean) * (x[i] - mean));
      const float factor = 1 / std::sqrt(static_cast<float>(squares / static_cast<double>(size)) + epsilon_);
      mean_[group] = mean;
      factor_[group] = factor;
      float* y = output() + first;
      for (std::size_t c = 0; c < each; ++c) {
        const float scale = factor * parameter(0)[channel + c], shift = parameter(1)[channel + c] - mean * scale;
        for (std::size_t i = c * pixels_; i < (c + 1) * pixels_; ++i) y[i] = x[i] * scale + shift;
      }
    });
  }

  // With n = (x - mean) factor and g = dy scale: dx = factor (g - mean(g) - n mean(g n)).
  void differentiate() override {
    const std::size_t each = channels_ / groups_;
    const auto size = static_cast<float>(each * pixels_);
    for_each_group([&](std::size_t group, std::size_t channel, std::size_t first) {
      const float *x = input(0) + first, *dy = output_gradient() + first;
      const float mean = mean_[group], factor = factor_[group];
      float a = 0, b = 0;
      for (std::size_t c = 0; c < each; ++c) {
        float sum = 0, products = 0;
#pragma omp simd reduction(+ : sum, products)
        for (std::size_t i = c * pixels_; i < (c + 1) * pixels_; ++i) {
          sum += dy[i];
          products += dy[i] * (x[i] - mean) * factor;
        }
        gradient_sums_[first / pixels_ + c] = sum;
        product_sums_[first / pixels_ + c] = products;
        a += sum * parameter(0)[channel + c] / size;
        b += products * parameter(0)[channel + c] / size;
      }
      if (input_gradient(0) == nullptr) return;
      float* dx = input_gradient(0) + first;
      for (std::size_t c = 0; c < each; ++c) {
        const float scale = parameter(0)[channel + c];
        for (std::size_t i = c * pixels_; i < (c + 1) * pixels_; ++i)
          dx[i] = factor * (dy[i] * scale - a - (x[i] - mean) * factor * b);
      }
    });
    for (std::size_t c = 0; trains_parameters() && c < channels_; ++c) {
      double to_scale = 0, to_shift = 0;
      for (std::size_t n = 0; n < batch_; ++n) {
        to_scale += static_cast<double>(product_sums_[n * channels_ + c]);
        to_shift += static_cast<double>(gradient_sums_[n * channels_ + c]);
      }
      parameter_gradient(0)[c] = static_cast<float>(to_scale);
      parameter_gradient(1)[c] = static_cast<float>(to_shift);
    }
  }

  float epsilon_;
  std::size_t batch_, channels_, groups_, pixels_;
  std::vector<float> mean_, factor_;                 // for each group in each sample
  std::vector<float> gradient_sums_, product_sums_;  // for each channel in each sample: the sums of dy and of dy n
};

}  // namespace

std::unique_ptr<Op> plan(const GroupNorm& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<GroupNormOp>(operation, inputs[0]);
}

}  // namespace annulus::cpu
