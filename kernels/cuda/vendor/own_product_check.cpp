#include "kernels/cuda/vendor/own_product_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/cuda/runtime/number.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/convolution_plan.h"

namespace annulus::cuda {
namespace {

constexpr double kTolerance = 0x1p-6;  // for bf16, relative to the norm; a wrong index or layout costs about 1

// Several tiles in each direction, and rests.
ConvolutionProblem small(ConvolutionProblem problem) {
  constexpr std::size_t kMost = 200;
  problem.batch = 3;
  problem.height = 7;
  problem.width = 15;
  problem.channels = std::min(problem.channels, kMost);
  problem.filters = std::min(problem.filters, kMost);
  return problem;
}

// Random values in device memory, rounded to the type.
class Values {
 public:
  Values(DataType type, std::size_t count, float low, float high) : type_(type) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = low + (high - low) * static_cast<float>(mix(count, i) >> 40) / static_cast<float>(1 << 24);
    const auto bytes = encode(values, type);
    memory_ = to_device(bytes);
    values_ = decode(bytes, type);
  }

  template <class T = void>
  T* address() const {
    return reinterpret_cast<T*>(memory_.view().address);
  }
  double operator[](std::size_t i) const { return static_cast<double>(values_[i]); }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(memory_.view().bytes);
    check(cudaMemcpy(all.data(), address(), all.size(), cudaMemcpyDeviceToHost));
    return all;
  }
  bool agrees(const std::vector<double>& expected) const {
    const auto found = decode(bytes(), type_);
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
      norm += expected[i] * expected[i];
    }
    return error <= kTolerance * kTolerance * norm;  // not if there is a NaN
  }

 private:
  DataType type_;
  Buffer memory_;
  std::vector<float> values_;
};

class Check {
 public:
  explicit Check(const ConvolutionProblem& problem) : p_(small(problem)), plan_(plan_own_product(p_)) {}

  bool passes() {
    std::vector<std::vector<std::byte>> first = run(), second = run();
    return first == second && (p_.is<Forward>() ? forward_agrees() : backward_agrees());
  }

 private:
  std::vector<std::vector<std::byte>> run() {
    const Buffer workspace = allocate_device(plan_->workspace_bytes());
    const Stream stream = make_stream();
    plan_->run({.input = input_.address(),
                .weights = weights_.address(),
                .output = output_.address(),
                .scale = scale_.address(),
                .shift = shift_.address(),
                .norm_input = norm_input_.address(),
                .addend = addend_.address(),
                .norm_output = norm_output_.address(),
                .gradient_of_others = others_.address(),
                .sums = sums_.address(),
                .squares = squares_.address(),
                .norm = {mean_.address<float>(), inverse_.address<float>(), nullptr, nullptr, sums_.address<float>(),
                         squares_.address<float>(), nullptr, nullptr, nullptr}},
               workspace.view().address, stream.get());
    check(cudaStreamSynchronize(stream.get()));
    return {input_.bytes(), output_.bytes(), sums_.bytes(), squares_.bytes()};
  }

  bool forward_agrees() const {
    std::vector<double> x(pixels_ * p_.channels), y(results_ * p_.filters), sum(p_.filters), square(p_.filters);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t c = i % p_.channels;
      const double end = scale_[c] * norm_input_[i] + shift_[c] + (p_.ends_block() ? addend_[i] : 0);
      x[i] = p_.normalizes() || p_.ends_block() ? std::max(0.0, end) : input_[i];
    }
    for_each_product([&](std::size_t in, std::size_t w, std::size_t out) {
      for (std::size_t c = 0; c < p_.channels; ++c) y[out] += x[in + c] * weights_[w + c];
    });
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum[i % p_.filters] += y[i];
      square[i % p_.filters] += y[i] * y[i];
    }
    return input_.agrees(x) && output_.agrees(y) &&
           (!p_.has_statistics() || (sums_.agrees(sum) && squares_.agrees(square)));
  }

  bool backward_agrees() const {
    std::vector<double> gradient(pixels_ * p_.channels), sum(p_.channels), normalized_sum(p_.channels);
    for_each_product([&](std::size_t in, std::size_t w, std::size_t out) {
      for (std::size_t c = 0; c < p_.channels; ++c) gradient[in + c] += output_[out] * weights_[w + c];
    });
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const std::size_t c = i % p_.channels;
      const bool elsewhere = p_.adds_elsewhere();
      if (elsewhere) gradient[i] += others_[i];
      if (!((elsewhere ? norm_output_[i] : scale_[c] * norm_input_[i] + shift_[c]) > 0)) gradient[i] = 0;
      sum[c] += gradient[i];
      normalized_sum[c] += gradient[i] * inverse_[c] * (norm_input_[i] - mean_[c]);
    }
    return input_.agrees(gradient) && sums_.agrees(sum) && squares_.agrees(normalized_sum);
  }

  // Calls visit(input, weights, output) for each filter and each two pixels that a place in its kernel connects, with
  // offsets, for the input and the weights the first channel's.
  template <class Visit>
  void for_each_product(const Visit& visit) const {
    const std::size_t rows = p_.output_height(), columns = p_.output_width();
    for (std::size_t output = 0; output < results_; ++output)
      for (std::size_t place = 0; place < p_.kernel.area(); ++place) {
        // Coordinates in the padding wrap around.
        const std::size_t y = output / columns % rows * p_.stride.height + place / p_.kernel.width - p_.padding.top;
        const std::size_t x = output % columns * p_.stride.width + place % p_.kernel.width - p_.padding.left;
        if (y >= p_.height || x >= p_.width) continue;
        const std::size_t input = ((output / (rows * columns) * p_.height + y) * p_.width + x) * p_.channels;
        for (std::size_t f = 0; f < p_.filters; ++f)
          visit(input, (f * p_.kernel.area() + place) * p_.channels, output * p_.filters + f);
      }
  }

  Values images(float low, float high) const { return {type_, pixels_ * p_.channels, low, high}; }
  Values channels(float low, float high) const { return {DataType::f32, p_.channels, low, high}; }
  Values results() const { return {DataType::f32, std::max(p_.channels, p_.filters), -1, 1}; }

  ConvolutionProblem p_;
  std::unique_ptr<ConvolutionPlan> plan_;
  DataType type_ = value_type(p_.precision);
  std::size_t pixels_ = p_.batch * p_.height * p_.width;
  std::size_t results_ = p_.batch * p_.output_height() * p_.output_width();  // pixels
  Values input_ = images(-1, 1), norm_input_ = images(-2, 2), addend_ = images(-1, 0.5f),
         norm_output_ = images(-1, 1.5f), others_ = images(-0.5f, 1);
  Values weights_{type_, p_.filters*p_.kernel.area() * p_.channels, -0.1f, 0.15f},
      output_{type_, results_*p_.filters, -1, 1.5f};
  Values scale_ = channels(0.5f, 1.5f), shift_ = channels(-0.5f, 1), mean_ = channels(-0.5f, 0.75f),
         inverse_ = channels(0.5f, 2), sums_ = results(), squares_ = results();
};

}  // namespace

bool own_product_agrees(const ConvolutionProblem& problem) {
  return Check(problem).passes();
}

}  // namespace annulus::cuda
