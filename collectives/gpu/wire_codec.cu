#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "collectives/gpu/wire_codec.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kMostBlocks = 32;  // see ring_sum.cu
constexpr std::size_t kEight = 8;     // 16-bit numbers in 16 bytes

struct Bf16 {
  static __device__ unsigned encode(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
  static __device__ float decode(unsigned bits) { return __bfloat162float(__ushort_as_bfloat16(bits)); }
};

struct Fp16 {
  static __device__ unsigned encode(float value) { return __half_as_ushort(__float2half_rn(value)); }
  static __device__ float decode(unsigned bits) { return __half2float(__ushort_as_half(bits)); }
};

struct Eight {
  float at[kEight];
};

// A float array, and whether it is aligned to 16 bytes.
template <class Float>
struct Values {
  Float* at;
  std::size_t count;
  bool aligned;
};

// The i-th eight, with zeros beyond the end.
__device__ Eight load(const Values<const float>& values, std::size_t i) {
  Eight eight{};
  const std::size_t begin = i * kEight;
  if (values.aligned && begin + kEight <= values.count) {
    const float4 low = *reinterpret_cast<const float4*>(values.at + begin),
                 high = *reinterpret_cast<const float4*>(values.at + begin + kEight / 2);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
#pragma unroll
  for (std::size_t k = 0; k < kEight; ++k)
    if (begin + k < values.count) eight.at[k] = values.at[begin + k];
  return eight;
}

__device__ void store(const Eight& eight, const Values<float>& values, std::size_t i) {
  const std::size_t begin = i * kEight;
  const float* const e = eight.at;
  if (values.aligned && begin + kEight <= values.count) {
    *reinterpret_cast<float4*>(values.at + begin) = make_float4(e[0], e[1], e[2], e[3]);
    *reinterpret_cast<float4*>(values.at + begin + kEight / 2) = make_float4(e[4], e[5], e[6], e[7]);
    return;
  }
#pragma unroll
  for (std::size_t k = 0; k < kEight; ++k)
    if (begin + k < values.count) values.at[begin + k] = e[k];
}

template <class Format>
__device__ uint4 coded(const Eight& eight) {
  const auto pair = [&](int k) { return Format::encode(eight.at[k]) | Format::encode(eight.at[k + 1]) << 16; };
  return make_uint4(pair(0), pair(2), pair(4), pair(6));
}

template <class Format>
__device__ Eight decoded(const uint4& words) {
  const auto low = [](unsigned word) { return Format::decode(word & 0xffffu); };
  const auto high = [](unsigned word) { return Format::decode(word >> 16); };
  return {{low(words.x), high(words.x), low(words.y), high(words.y), low(words.z), high(words.z), low(words.w),
           high(words.w)}};
}

__device__ std::size_t first() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::size_t stride() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}
__device__ std::size_t eights(std::size_t count) {
  return (count + kEight - 1) / kEight;
}

template <class Format>
__global__ void encode_vectors(Values<const float> values, uint4* to) {
  for (std::size_t i = first(); i < eights(values.count); i += stride()) to[i] = coded<Format>(load(values, i));
}

template <class Format>
__global__ void decode_vectors(const uint4* from, Values<float> values) {
  for (std::size_t i = first(); i < eights(values.count); i += stride())
    store(decoded<Format>(__ldcs(from + i)), values, i);
}

// `distance` in vectors.
template <class Format>
__global__ void sum_coded_vectors(Values<const float> values, const uint4* arrays, std::size_t distance,
                                  std::size_t size, uint4* sum) {
  for (std::size_t i = first(); i < eights(values.count); i += stride()) {
    Eight total = load(values, i);
    for (std::size_t array = 0; array < size; ++array) {
      const Eight added = decoded<Format>(__ldcs(arrays + array * distance + i));
#pragma unroll
      for (std::size_t k = 0; k < kEight; ++k) total.at[k] += added.at[k];
    }
    sum[i] = coded<Format>(total);
  }
}

template <class Float>
Values<Float> values_at(Float* at, std::size_t count) {
  return {at, count, reinterpret_cast<std::uintptr_t>(at) % sizeof(float4) == 0};
}

unsigned blocks(std::size_t count) {
  return static_cast<unsigned>(std::clamp<std::size_t>((count / kEight + kThreads - 1) / kThreads, 1, kMostBlocks));
}

// Calls body(Format{}).
template <class Body>
void with_format(WireType wire, const Body& body) {
  if (wire == WireType::bf16)
    body(Bf16{});
  else
    body(Fp16{});
}

}  // namespace

void encode(WireType wire, const float* values, std::uint16_t* coded, std::size_t count, cudaStream_t stream) {
  if (count == 0) return;
  with_format(wire, [&]<class Format>(Format) {
    launch(encode_vectors<Format>, blocks(count), kThreads, stream, values_at(values, count),
           reinterpret_cast<uint4*>(coded));
  });
}

void decode(WireType wire, const std::uint16_t* coded, float* values, std::size_t count, cudaStream_t stream) {
  if (count == 0) return;
  with_format(wire, [&]<class Format>(Format) {
    launch(decode_vectors<Format>, blocks(count), kThreads, stream, reinterpret_cast<const uint4*>(coded),
           values_at(values, count));
  });
}

void sum_coded(WireType wire, const float* values, const std::uint16_t* arrays, std::size_t distance, std::size_t size,
               std::uint16_t* sum, std::size_t count, cudaStream_t stream) {
  if (count == 0) return;
  with_format(wire, [&]<class Format>(Format) {
    launch(sum_coded_vectors<Format>, blocks(count), kThreads, stream, values_at(values, count),
           reinterpret_cast<const uint4*>(arrays), distance / kEight, size, reinterpret_cast<uint4*>(sum));
  });
}

}  // namespace annulus::cuda
