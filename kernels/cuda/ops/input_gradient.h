#pragma once

#include "kernels/cuda/ops/vectors.h"
#include "kernels/device.h"

namespace annulus::cuda {

// Where the gradient of an operation's input goes, and whether it is added to what lies there.
template <class T>
struct InputGradient {
  T* values = nullptr;  // null: nobody wants it
  bool accumulate = false;

  InputGradient() = default;
  InputGradient(const Bindings& bindings, std::size_t input) {
    if (input >= bindings.input_gradients.size()) return;
    values = data<T>(bindings.input_gradients[input]);
    accumulate = wanted() && input < bindings.accumulate.size() && bindings.accumulate[input];
  }

  __host__ __device__ bool wanted() const { return values != nullptr; }

  // Whether it lies where the output's gradient does, and so is there already where it is the same.
  bool is(DeviceView output_gradient) const { return data<T>(output_gradient) == values && !accumulate; }

  // What the `index`-th 16 bytes are added to, if they are.
  __device__ Packed<T> there(std::size_t index) const { return accumulate ? fetch(values, index) : Packed<T>{}; }

  // The `index`-th 16 bytes. A kernel that has many loads on their way begins with there() among them.
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
