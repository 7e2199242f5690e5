#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/base/tensor.h"
#include "kernels/cuda/runtime/layout.h"
#include "kernels/cuda/runtime/predecessor.h"

// A thread reads and writes 16 bytes at a time, and computes with the values in float32.
namespace annulus::cuda {

template <class T>
constexpr unsigned kLanes = kVectorBytes / sizeof(T);

template <unsigned count>
struct Floats {
  float at[count];
};

// 16 bytes of T values, as float32.
template <class T>
using Vector = Floats<kLanes<T>>;

// 16 bytes as stored in memory; 16-bit values are in pairs. (CUDA's pair types are not trivially copyable, so the
// compiler would copy pair by pair instead of 16 bytes.)
template <class T>
struct alignas(kVectorBytes) Packed {
  std::uint32_t at[4];
};
template <>
struct alignas(kVectorBytes) Packed<float> {
  float at[4];
};

template <class Pair>
__device__ std::uint32_t bits_of(const Pair& pair) {
  std::uint32_t bits;
  static_assert(sizeof pair == sizeof bits);
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

template <class T>
__device__ float2 widened(std::uint32_t pair);
template <>
__device__ inline float2 widened<__half>(std::uint32_t pair) {
  __half2 halves;
  memcpy(&halves, &pair, sizeof halves);
  return __half22float2(halves);
}
template <>
__device__ inline float2 widened<__nv_bfloat16>(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

template <class T>
__device__ std::uint32_t narrowed(float x, float y);
template <>
__device__ inline std::uint32_t narrowed<__half>(float x, float y) {
  return bits_of(__floats2half2_rn(x, y));
}
template <>
__device__ inline std::uint32_t narrowed<__nv_bfloat16>(float x, float y) {
  return bits_of(__floats2bfloat162_rn(x, y));
}

template <class T>
__device__ Vector<T> unpacked(const Packed<T>& packed) {
  Vector<T> values;
  for (unsigned i = 0; i < kLanes<T> / 2; ++i) {
    const float2 pair = widened<T>(packed.at[i]);
    values.at[2 * i] = pair.x;
    values.at[2 * i + 1] = pair.y;
  }
  return values;
}
template <>
__device__ inline Vector<float> unpacked<float>(const Packed<float>& packed) {
  return {{packed.at[0], packed.at[1], packed.at[2], packed.at[3]}};
}

template <class T>
__device__ Packed<T> packed(const Vector<T>& values) {
  Packed<T> result;
  for (unsigned i = 0; i < kLanes<T> / 2; ++i) result.at[i] = narrowed<T>(values.at[2 * i], values.at[2 * i + 1]);
  return result;
}
template <>
__device__ inline Packed<float> packed<float>(const Vector<float>& values) {
  return {{values.at[0], values.at[1], values.at[2], values.at[3]}};
}

// Loads the `index`-th 16 bytes, packed, so that they take fewer registers until they are needed.
template <class T>
__device__ Packed<T> fetch(const T* from, std::size_t index) {
  return reinterpret_cast<const Packed<T>*>(from)[index];
}
template <class T>
__device__ Vector<T> load(const T* from, std::size_t index) {
  return unpacked<T>(fetch(from, index));
}
template <class T>
__device__ void store(const Vector<T>& values, T* to, std::size_t index) {
  reinterpret_cast<Packed<T>*>(to)[index] = packed<T>(values);
}

// Neighbouring float32s, `count` (a multiple of 4), aligned to 16 bytes.
template <unsigned count>
__device__ Floats<count> load_floats(const float* from) {
  Floats<count> values;
  for (unsigned i = 0; i < count; i += 4) {
    const Packed<float> four = *reinterpret_cast<const Packed<float>*>(from + i);
    for (unsigned k = 0; k < 4; ++k) values.at[i + k] = four.at[k];
  }
  return values;
}

template <unsigned count>
__device__ void store_floats(const Floats<count>& values, float* to) {
  for (unsigned i = 0; i < count; i += 4)
    *reinterpret_cast<Packed<float>*>(to + i) = {{values.at[i], values.at[i + 1], values.at[i + 2], values.at[i + 3]}};
}

// NaN passes: a network that has diverged must not look healthy.
__device__ inline float relu(float value) {
  return value < 0 ? 0 : value;
}

// The thread's first index in a grid-stride loop.
__device__ inline std::size_t grid_thread() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t grid_threads() {
  return std::size_t{gridDim.x} * blockDim.x;
}

// Whether this is a step that must not change anything (Context::skip).
__device__ inline bool skipped(const std::uint32_t* skip) {
  return skip != nullptr && *skip != 0;
}

// ---- host code

template <class T>
T* data(DeviceView view) {
  return reinterpret_cast<T*>(view.address);
}

// Makes an Op<T> for the T that corresponds to a value type.
template <class Base, template <class> class Op, class... Arguments>
std::unique_ptr<Base> make_for(DataType type, Arguments&&... arguments) {
  switch (type) {
    case DataType::f16:
      return std::make_unique<Op<__half>>(std::forward<Arguments>(arguments)...);
    case DataType::bf16:
      return std::make_unique<Op<__nv_bfloat16>>(std::forward<Arguments>(arguments)...);
    default:
      return std::make_unique<Op<float>>(std::forward<Arguments>(arguments)...);
  }
}

// Calls work(T{}) for the T that corresponds to a value type.
template <class Work>
void for_type(DataType type, const Work& work) {
  if (type == DataType::f16) return work(__half{});
  if (type == DataType::bf16) return work(__nv_bfloat16{});
  work(float{});
}

}  // namespace annulus::cuda
