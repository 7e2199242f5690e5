#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <span>
#include <vector>

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/runtime/layout.h"

// Helpers for tests of single operations on a GPU, real or emulated.
namespace annulus::test {

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::bf16, Precision::fp16};

// Maximum error of values that were rounded once or twice, relative to the tensor's largest.
inline double tolerance(Precision precision) {
  switch (precision) {
    case Precision::bf16:
      return 0x1p-7;
    case Precision::fp16:
      return 0x1p-10;
    default:
      return 1e-5;
  }
}

inline std::byte* upload(cuda::Context& context, const void* from, std::size_t bytes, Buffer& to) {
  if (to.view().bytes < bytes || !to.view()) to = cuda::allocate_device(bytes);
  cuda::check(cudaMemcpyAsync(to.view().address, from, bytes, cudaMemcpyHostToDevice, context.lane.get()));
  cuda::check(cudaStreamSynchronize(context.lane.get()));
  return to.view().address;
}

inline void download(const cuda::Context& context, DeviceView from, void* to) {
  cuda::check(cudaMemcpyAsync(to, from.address, from.bytes, cudaMemcpyDeviceToHost, context.lane.get()));
  cuda::check(cudaStreamSynchronize(context.lane.get()));
}

// A context with its own loss scale. Few multiprocessors, so that even small tensors need several blocks, and several
// rounds of each.
struct Gpu {
  explicit Gpu(Precision precision, int multiprocessors = 2) {
    context.precision = precision;
    context.multiprocessors = multiprocessors;
    context.lane = cuda::make_stream();
    context.convolutions = cuda::make_convolution_planner();
    context.matmuls = cuda::make_matmul_planner();
    context.attention = cuda::make_attention_planner();
    const float constants[] = {scale(), 1 / scale()};
    const auto* at = reinterpret_cast<const float*>(upload(context, constants, sizeof constants, scales));
    context.loss_scale = at;
    context.unscale = at + 1;
  }

  float scale() const { return context.precision == Precision::fp16 ? 8.0f : 1.0f; }

  cuda::Context context;
  Buffer scales;
};

template <class T>
std::vector<std::byte> converted(std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

template <class T>
std::vector<float> converted_back(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<float>(value);
  }
  return values;
}

inline std::vector<std::byte> to_type(std::span<const float> values, DataType type) {
  if (type == DataType::bf16) return converted<__nv_bfloat16>(values);
  if (type == DataType::f16) return converted<__half>(values);
  return converted<float>(values);
}

inline std::vector<float> from_type(std::span<const std::byte> bytes, DataType type) {
  if (type == DataType::bf16) return converted_back<__nv_bfloat16>(bytes);
  if (type == DataType::f16) return converted_back<__half>(bytes);
  return converted_back<float>(bytes);
}

inline std::vector<float> rounded(const std::vector<float>& values, DataType type) {
  return from_type(to_type(values, type), type);
}

// A tensor in the GPU's memory, of row-major values.
struct GpuTensor {
  GpuTensor(Gpu& on, const TensorSpec& layout, const std::vector<float>& values) : gpu(&on), spec(layout) {
    write(values);
  }

  void write(const std::vector<float>& values) {
    const auto bytes = to_type(packed(values), spec.type);
    upload(gpu->context, bytes.data(), bytes.size(), memory);
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(spec.layout->bytes());
    download(gpu->context, memory.view(), all.data());
    return all;
  }

  std::vector<float> read() const {
    const auto values = from_type(bytes(), spec.type);
    const auto* layout = dynamic_cast<const cuda::ChannelsLast*>(spec.layout.get());
    if (layout == nullptr) return values;
    std::vector<float> unpacked(elements(spec.shape));
    layout->unpack(values, unpacked);
    return unpacked;
  }

  // Whether there are only zeros in the padding.
  bool clean() const {
    const auto there = from_type(bytes(), spec.type), again = packed(read());
    for (std::size_t i = 0; i < there.size(); ++i)
      if (again[i] == 0 && there[i] != 0) return false;
    return true;
  }

  DeviceView view() const { return memory.view(); }

  Gpu* gpu;
  TensorSpec spec;
  Buffer memory;

 private:
  std::vector<float> packed(const std::vector<float>& values) const {
    const auto* layout = dynamic_cast<const cuda::ChannelsLast*>(spec.layout.get());
    if (layout == nullptr) return values;
    std::vector<float> all(layout->count());
    layout->pack(values, all);
    return all;
  }
};

}  // namespace annulus::test
