#include "tests/gpu/emulator/values.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/base/error.h"
#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/stream_races.h"

using annulus::DataType;
using annulus::fail;
using annulus::Precision;

namespace emulated {
namespace {

constexpr std::size_t kVectorBytes = 16;

template <class T>
std::vector<float> load_as(const void* from, std::size_t count) {
  const T* const values = static_cast<const T*>(from);
  return std::vector<float>(values, values + count);
}

template <class T>
void store_as(const std::vector<float>& values, void* to) {
  std::ranges::copy(values, static_cast<T*>(to));
}

float to_tf32(float value) {
  constexpr unsigned kDropped = 13;
  const auto bits = __float_as_uint(value);
  if (!std::isfinite(value)) return value;
  const unsigned even = bits >> kDropped & 1;
  return __uint_as_float((bits + (1u << (kDropped - 1)) - 1 + even) >> kDropped << kDropped);
}

}  // namespace

void check_operand(const char* what, const void* address, std::size_t count, std::size_t value_bytes,
                   std::size_t alignment) {
  if (reinterpret_cast<std::size_t>(address) % alignment != 0)
    fail("{} at {} is not aligned to {} bytes", what, fmt::ptr(address), alignment);
  if (!device_reaches(address, count * value_bytes))
    fail("{} of {} values at {} is not a device's memory throughout", what, count, fmt::ptr(address));
}

void check_multiple(const char* what, std::size_t count, Precision precision) {
  const std::size_t block = kVectorBytes / size_of(value_type(precision));
  if (count == 0 || count % block != 0) fail("{} {} are not a multiple of {}", count, what, block);
}

std::vector<float> load(const void* from, std::size_t count, DataType type) {
  stream_races::read(from, count * size_of(type));
  switch (type) {
    case DataType::f32:
      return load_as<float>(from, count);
    case DataType::f16:
      return load_as<__half>(from, count);
    case DataType::bf16:
      return load_as<__nv_bfloat16>(from, count);
    default:
      fail("values that are multiplied are float32, float16 or bfloat16");
  }
}

std::vector<float> load_factors(const void* from, std::size_t count, Precision precision) {
  std::vector<float> values = load(from, count, value_type(precision));
  if (precision == Precision::tf32) std::ranges::transform(values, values.begin(), to_tf32);
  return values;
}

void store(const std::vector<float>& values, void* to, DataType type) {
  stream_races::write(to, values.size() * size_of(type));
  switch (type) {
    case DataType::f32:
      return store_as<float>(values, to);
    case DataType::f16:
      return store_as<__half>(values, to);
    case DataType::bf16:
      return store_as<__nv_bfloat16>(values, to);
    default:
      fail("products are float32, float16 or bfloat16");
  }
}

}  // namespace emulated
