#include "kernels/cuda/ops/flat.h"

#include "kernels/cuda/ops/over_vectors.h"

namespace annulus::cuda {
namespace {

template <class T>
__global__ void cast_vectors(Predecessor previous, const float* from, T* to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads())
    store(load_floats<kLanes<T>>(from + i * kLanes<T>), to, i);
}

template <class T>
__global__ void widen_vectors(Predecessor previous, const T* from, float* to, const float* factor,
                              std::size_t vectors) {
  await(previous);
  const float by = *factor;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<T> values = load(from, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] *= by;
    store_floats(values, to + i * kLanes<T>);
  }
}

__global__ void scale_vectors(Predecessor previous, const float* from, float factor, float* to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<float> values = load(from, i);
    for (unsigned k = 0; k < kLanes<float>; ++k) values.at[k] *= factor;
    store(values, to, i);
  }
}

__global__ void add_scaled_vectors(Predecessor previous, const float* from, float factor, float* to,
                                   std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Vector<float> more = load(from, i);
    Vector<float> values = load(to, i);
    for (unsigned k = 0; k < kLanes<float>; ++k) values.at[k] += factor * more.at[k];
    store(values, to, i);
  }
}

__global__ void move_vectors(Predecessor previous, const float* from, float* to, float share, const std::uint32_t* skip,
                             std::size_t vectors) {
  await(previous);
  if (skipped(skip)) return;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Vector<float> goal = load(from, i);
    Vector<float> values = load(to, i);
    for (unsigned k = 0; k < kLanes<float>; ++k) values.at[k] += share * (goal.at[k] - values.at[k]);
    store(values, to, i);
  }
}

__global__ void swap_vectors(Predecessor previous, float* a, float* b, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Packed<float> from_a = fetch(a, i), from_b = fetch(b, i);
    store(unpacked<float>(from_b), a, i);
    store(unpacked<float>(from_a), b, i);
  }
}

// Rows of one index may be anywhere in `from`, so each thread adds a vector of all of them. `factor` may be null.
template <class T>
__global__ void add_row_vectors(Predecessor previous, const T* from, const std::int32_t* index, std::size_t rows,
                                const float* factor, float* to, std::size_t vectors) {
  await(previous);
  const float by = factor == nullptr ? 1 : *factor;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads())
    for (std::size_t row = 0; row < rows; ++row) {
      if (index[row] < 0) continue;
      const Vector<T> more = load(from, row * vectors + i);
      float* sum = to + (static_cast<std::size_t>(index[row]) * vectors + i) * kLanes<T>;
      Vector<T> values = load_floats<kLanes<T>>(sum);
      for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] += by * more.at[k];
      store_floats(values, sum);
    }
}

}  // namespace

void add_rows(DeviceView from, DataType type, DeviceView index, std::size_t width, DeviceView to,
              const Context& context) {
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    over_vectors(add_row_vectors<T>, width / kLanes<T>, context, data<T>(from), data<std::int32_t>(index),
                 index.bytes / sizeof(std::int32_t), type == DataType::f32 ? nullptr : context.unscale,
                 data<float>(to));
  });
}

void add(DeviceView from, DeviceView to, DataType type, const Context& context) {
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    over_vectors(add_vectors<T>, to.bytes / kVectorBytes, context, data<T>(to), data<T>(from), data<T>(to));
  });
}

void scale(DeviceView from, float factor, DeviceView to, const Context& context) {
  over_vectors(scale_vectors, to.bytes / kVectorBytes, context, data<float>(from), factor, data<float>(to));
}

void add_scaled(DeviceView from, float factor, DeviceView to, const Context& context) {
  over_vectors(add_scaled_vectors, to.bytes / kVectorBytes, context, data<float>(from), factor, data<float>(to));
}

void move_towards(DeviceView goal, DeviceView values, float share, const Context& context) {
  over_vectors(move_vectors, values.bytes / kVectorBytes, context, data<float>(goal), data<float>(values), share,
               context.skip);
}

void swap(DeviceView a, DeviceView b, const Context& context) {
  over_vectors(swap_vectors, a.bytes / kVectorBytes, context, data<float>(a), data<float>(b));
}

void cast_params(DeviceView weights, DeviceView copies, const Context& context) {
  for_type(context.type(), [&](auto zero) {
    using T = decltype(zero);
    over_vectors(cast_vectors<T>, copies.bytes / kVectorBytes, context, data<float>(weights), data<T>(copies));
  });
}

void widen(const void* from, DeviceView to, const float* factor, const Context& context) {
  for_type(context.type(), [&](auto zero) {
    using T = decltype(zero);
    over_vectors(widen_vectors<T>, to.bytes / sizeof(float) / kLanes<T>, context, static_cast<const T*>(from),
                 data<float>(to), factor);
  });
}

}  // namespace annulus::cuda
