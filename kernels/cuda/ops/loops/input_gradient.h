#pragma once

#include "kernels/cuda/ops/loops/vectors.h"
#include "kernels/device.h"

namespace annulus::cuda {

// Where an input's gradient goes, and whether to add it to the content there.
template <class T>
struct InputGradient {
  T* values = nullptr;  // null if the gradient is not needed
  bool accumulate = false;

  InputGradient() = default;
  explicit InputGradient(DeviceView output) : values(data<T>(output)) {}  // an output, written like a gradient
  InputGradient(const Bindings& bindings, std::size_t input) {
    if (input >= bindings.input_gradients.size()) return;
    values = data<T>(bindings.input_gradients[input]);
    accumulate = wanted() && bindings.accumulates(input);
  }

  __host__ __device__ bool wanted() const { return values != nullptr; }

  // Whether it has the output gradient's memory. If both gradients are equal, nothing has to be written then.
  bool is(DeviceView output_gradient) const { return data<T>(output_gradient) == values && !accumulate; }

  // The current content that the `index`-th vector is added to; zeros unless `accumulate`.
  __device__ Packed<T> there(std::size_t index) const { return accumulate ? fetch(values, index) : Packed<T>{}; }

  // Writes the `index`-th vector. A kernel with several loads in flight calls there() along with the other loads.
  __device__ void put(const Vector<T>& gradient, std::size_t index) const { put(gradient, index, there(index)); }
  __device__ void put(Vector<T> gradient, std::size_t index, const Packed<T>& there) const {
    if (accumulate) {
      const Vector<T> more = unpacked<T>(there);
      for (unsigned i = 0; i < kLanes<T>; ++i) gradient.at[i] += more.at[i];
    }
    store(gradient, values, index);
  }
};

}  // namespace annulus::cuda
