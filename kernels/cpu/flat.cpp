#include "kernels/cpu/flat.h"

namespace annulus::cpu {
namespace {

// Below this many elements waking the other threads costs more than they save.
constexpr std::ptrdiff_t kParallelElements = 1 << 15;

// Calls body(i) for each i below `size`, vectorized, and on all threads where that pays.
template <class Body>
void for_each_element(std::size_t size, const Body& body) {
  const auto end = static_cast<std::ptrdiff_t>(size);
#pragma omp parallel for simd schedule(static) if (end >= kParallelElements)
  for (std::ptrdiff_t i = 0; i < end; ++i) body(i);
}

}  // namespace

void copy(std::span<const float> from, std::span<float> to) {
  for_each_element(to.size(), [in = from.data(), out = to.data()](auto i) { out[i] = in[i]; });
}

void add(std::span<const float> from, std::span<float> to) {
  for_each_element(to.size(), [in = from.data(), out = to.data()](auto i) { out[i] += in[i]; });
}

void sum(std::span<const float> a, std::span<const float> b, std::span<float> to) {
  for_each_element(to.size(), [a = a.data(), b = b.data(), out = to.data()](auto i) { out[i] = a[i] + b[i]; });
}

void relu(std::span<const float> from, std::span<float> to) {
  // Written so that NaN passes: a network that has diverged must not look healthy.
  for_each_element(to.size(), [in = from.data(), out = to.data()](auto i) { out[i] = in[i] < 0 ? 0 : in[i]; });
}

void relu_backward(std::span<const float> output, std::span<const float> output_gradient,
                   std::span<float> input_gradient) {
  for_each_element(input_gradient.size(), [y = output.data(), dy = output_gradient.data(),
                                           dx = input_gradient.data()](auto i) { dx[i] = y[i] > 0 ? dy[i] : 0; });
}

void scale(std::span<const float> from, float factor, std::span<float> to) {
  for_each_element(from.size(), [in = from.data(), out = to.data(), factor](auto i) { out[i] = factor * in[i]; });
}

void average(std::span<float> running, std::span<const float> batch, float momentum) {
  for_each_element(running.size(),
                   [r = running.data(), b = batch.data(), momentum](auto i) { r[i] += momentum * (b[i] - r[i]); });
}

void sgd(std::span<float> weights, std::span<const float> gradients, std::span<float> velocity, const SgdStep& step) {
  const auto update = [w = weights.data(), g = gradients.data(), v = velocity.data(), step](auto i, auto nesterov) {
    const float gradient = g[i] + step.weight_decay * w[i];
    v[i] = step.momentum * v[i] + gradient;
    w[i] -= step.rate * (nesterov ? gradient + step.momentum * v[i] : v[i]);
  };
  // Two loops, so that neither asks inside.
  if (step.nesterov)
    for_each_element(weights.size(), [&](auto i) { update(i, std::true_type{}); });
  else
    for_each_element(weights.size(), [&](auto i) { update(i, std::false_type{}); });
}

}  // namespace annulus::cpu
