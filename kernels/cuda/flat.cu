#include "kernels/cuda/flat.h"

#include "kernels/cuda/over_vectors.h"

namespace annulus::cuda {
namespace {

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

}  // namespace

void add(DeviceView from, DeviceView to, DataType type, const Context& context) {
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    over_vectors(add_vectors<T>, to.bytes / kVectorBytes, context, data<T>(to), data<T>(from), data<T>(to));
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
