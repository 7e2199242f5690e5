#include "kernels/cuda/flat.h"

#include "kernels/cuda/vectors.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

template <class T>
__global__ void add_vectors(const T* from, T* to, std::size_t vectors) {
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Vector<T> more = load(from, i);
    Vector<T> sum = load(to, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += more.at[k];
    store(sum, to, i);
  }
}

template <class T>
__global__ void narrow_vectors(const float* from, T* to, std::size_t vectors) {
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads())
    store(load_floats<kLanes<T>>(from + i * kLanes<T>), to, i);
}

template <class T>
__global__ void widen_vectors(const T* from, float* to, const float* factor, std::size_t vectors) {
  const float by = *factor;
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    Vector<T> values = load(from, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] *= by;
    store_floats(values, to + i * kLanes<T>);
  }
}

template <class... Parameters, class... Arguments>
void over_vectors(void (*kernel)(Parameters...), std::size_t vectors, const Context& context, Arguments... arguments) {
  if (vectors > 0)
    launch(kernel, blocks_for(vectors, kThreads, context.multiprocessors), kThreads, context.lane.get(), arguments...,
           vectors);
}

}  // namespace

void add(DeviceView from, DeviceView to, DataType type, const Context& context) {
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    over_vectors(add_vectors<T>, to.bytes / kVectorBytes, context, data<T>(from), data<T>(to));
  });
}

void narrow(DeviceView weights, DeviceView copies, const Context& context) {
  for_type(context.type(), [&](auto zero) {
    using T = decltype(zero);
    over_vectors(narrow_vectors<T>, copies.bytes / kVectorBytes, context, data<float>(weights), data<T>(copies));
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
