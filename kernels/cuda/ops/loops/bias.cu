#include "kernels/cuda/ops/loops/bias.h"

#include "kernels/cuda/ops/loops/column_sums.h"

namespace annulus::cuda {
namespace {

template <class T, bool rectify>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    add_bias(Predecessor previous, Columns columns, T* output, const float* bias) {
  await(previous);
  constexpr unsigned kBatch = 2;
  Floats<kLanes<T>> added{};
  if (bias != nullptr && own_vector() < columns.vectors)
    added = load_floats<kLanes<T>>(bias + own_vector() * kLanes<T>);
  Packed<T> values[kBatch];
  for_each_row<kBatch>(
      columns, true, [&](unsigned k, std::size_t index) { values[k] = fetch(output, index); },
      [&](unsigned k, std::size_t index) {
        Vector<T> value = unpacked<T>(values[k]);
        for (unsigned i = 0; i < kLanes<T>; ++i) {
          value.at[i] += added.at[i];
          if constexpr (rectify) value.at[i] = relu(value.at[i]);
        }
        store(value, output, index);
      });
}

struct BiasGradient {
  const float* unscale;
  float* values;

  __device__ void operator()(unsigned channel, const Sums<1>& sum) const { values[channel] = *unscale * sum.of[0]; }
};

// Masks the gradient if there is a ReLU, and adds it up if `partial` is not null.
template <class T, bool rectify>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    mask_and_add_up(Predecessor previous, Columns columns, const T* __restrict__ output, T* __restrict__ gradient,
                    Sums<1>* partial, unsigned* counters, BiasGradient to) {
  await(previous);
  constexpr unsigned kBatch = 2;
  Sums<1> sums[kLanes<T>]{};
  Packed<T> outputs[kBatch], gradients[kBatch];
  for_each_row<kBatch>(
      columns, false,
      [&](unsigned k, std::size_t index) {
        gradients[k] = fetch(gradient, index);
        if constexpr (rectify) outputs[k] = fetch(output, index);
      },
      [&](unsigned k, std::size_t index) {
        Vector<T> passed = unpacked<T>(gradients[k]);
        if constexpr (rectify) {
          const Vector<T> out = unpacked<T>(outputs[k]);
          for (unsigned i = 0; i < kLanes<T>; ++i) passed.at[i] = out.at[i] > 0 ? passed.at[i] : 0;
          store(passed, gradient, index);
        }
        for (unsigned i = 0; i < kLanes<T>; ++i) sums[i].of[0] += passed.at[i];
      });
  if (partial != nullptr) add_up_columns(columns, sums, partial, counters, to);
}

}  // namespace

BiasRelu::BiasRelu(bool bias, bool relu, std::size_t rows, std::size_t channels, Context& context)
    : context_(context),
      bias_(bias),
      relu_(relu),
      columns_(rows, channels, static_cast<unsigned>(channel_block(context.type())), context.multiprocessors) {
  if (bias) counters_ = allocate_device(columns_.counters() * sizeof(unsigned));
}

std::size_t BiasRelu::workspace_bytes() const {
  return bias_ ? columns_.partial_sums() * sizeof(Sums<1>) : 0;
}

void BiasRelu::forward(void* output, const float* bias) const {
  if (!bias_ && !relu_) return;
  for_type(context_.type(), [&](auto zero) {
    using T = decltype(zero);
    launch(relu_ ? add_bias<T, true> : add_bias<T, false>, columns_.grid(), columns_.block(), context_.lane.get(),
           columns_, static_cast<T*>(output), bias_ ? bias : nullptr);
  });
}

void BiasRelu::backward(const void* output, void* output_gradient, float* bias_gradient, void* workspace) const {
  const bool adds_up = bias_ && bias_gradient != nullptr;
  if (!adds_up && !relu_) return;
  auto* partial = adds_up ? static_cast<Sums<1>*>(workspace) : nullptr;
  for_type(context_.type(), [&](auto zero) {
    using T = decltype(zero);
    launch(relu_ ? mask_and_add_up<T, true> : mask_and_add_up<T, false>, columns_.grid(), columns_.block(),
           context_.lane.get(), columns_, static_cast<const T*>(output), static_cast<T*>(output_gradient), partial,
           data<unsigned>(counters_.view()), BiasGradient{context_.unscale, bias_gradient});
  });
}

}  // namespace annulus::cuda
