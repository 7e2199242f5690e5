#include "kernels/cpu/loops/elementwise.h"

#include <omp.h>

#include "kernels/base/split.h"
#include "kernels/cpu/loops/for_each_element.h"

namespace annulus::cpu {

void copy(std::span<const float> from, std::span<float> to) {
  if (from.data() == to.data()) return;
  for_each_element(to.size(), [in = from.data(), out = to.data()](auto i) { out[i] = in[i]; });
}

void add(std::span<const float> from, std::span<float> to) {
  for_each_element(to.size(), [in = from.data(), out = to.data()](auto i) { out[i] += in[i]; });
}

void sum(std::span<const float> a, std::span<const float> b, std::span<float> to) {
  for_each_element(to.size(), [a = a.data(), b = b.data(), out = to.data()](auto i) { out[i] = a[i] + b[i]; });
}

void relu(std::span<const float> from, std::span<float> to) {
  // Written so that NaN passes, so that divergence is not hidden.
  for_each_element(to.size(), [in = from.data(), out = to.data()](auto i) { out[i] = in[i] < 0 ? 0 : in[i]; });
}

void relu_backward(std::span<const float> output, std::span<const float> output_gradient,
                   std::span<float> input_gradient) {
  for_each_element(input_gradient.size(), [y = output.data(), dy = output_gradient.data(),
                                           dx = input_gradient.data()](auto i) { dx[i] = y[i] > 0 ? dy[i] : 0; });
}

void move_towards(std::span<const float> goal, std::span<float> values, float share) {
  for_each_element(values.size(),
                   [in = goal.data(), out = values.data(), share](auto i) { out[i] += share * (in[i] - out[i]); });
}

// Rows with the same index may be anywhere in `from`, so each thread adds some columns of all rows.
void add_rows(std::span<const float> from, std::span<const std::int32_t> index, std::size_t width,
              std::span<float> to) {
#pragma omp parallel if (static_cast <std::ptrdiff_t>(from.size()) >= kParallelElements)
  {
    constexpr std::size_t kLine = 16;  // floats
    const Range own = split_blocks(width, kLine, static_cast<std::size_t>(omp_get_num_threads()),
                                   static_cast<std::size_t>(omp_get_thread_num()));
    for (std::size_t i = 0; i < index.size(); ++i) {
      if (index[i] < 0) continue;
      const float* row = from.data() + i * width;
      float* sum = to.data() + static_cast<std::size_t>(index[i]) * width;
#pragma omp simd
      for (std::size_t c = own.begin; c < own.end; ++c) sum[c] += row[c];
    }
  }
}

void scale(std::span<const float> from, float factor, std::span<float> to) {
  for_each_element(from.size(), [in = from.data(), out = to.data(), factor](auto i) { out[i] = factor * in[i]; });
}

void add_scaled(std::span<const float> from, float factor, std::span<float> to) {
  for_each_element(from.size(), [in = from.data(), out = to.data(), factor](auto i) { out[i] += factor * in[i]; });
}

}  // namespace annulus::cpu
