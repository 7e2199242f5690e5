#include "kernels/cuda/runtime/number.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "kernels/base/error.h"

namespace annulus::cuda {
namespace {

template <class Number, class Encode>
std::vector<std::byte> encode_each(std::span<const float> values, const Encode& encode_one) {
  std::vector<std::byte> bytes(values.size() * sizeof(Number));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Number number = encode_one(values[i]);
    std::memcpy(bytes.data() + i * sizeof number, &number, sizeof number);
  }
  return bytes;
}

template <class Number, class Decode>
std::vector<float> decode_each(std::span<const std::byte> bytes, const Decode& decode_one) {
  std::vector<float> values(bytes.size() / sizeof(Number));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Number number;
    std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
    values[i] = decode_one(number);
  }
  return values;
}

[[noreturn]] void refuse(DataType type) {
  fail("activations cannot be of type {}", static_cast<int>(type));
}

}  // namespace

std::vector<std::byte> encode(std::span<const float> values, DataType type) {
  switch (type) {
    case DataType::f32:
      return encode_each<float>(values, [](float value) { return value; });
    case DataType::f16:
      return encode_each<__half>(values, [](float value) { return __float2half_rn(value); });
    case DataType::bf16:
      return encode_each<__nv_bfloat16>(values, [](float value) { return __float2bfloat16_rn(value); });
    default:
      refuse(type);
  }
}

std::vector<float> decode(std::span<const std::byte> bytes, DataType type) {
  switch (type) {
    case DataType::f32:
      return decode_each<float>(bytes, [](float value) { return value; });
    case DataType::f16:
      return decode_each<__half>(bytes, [](__half value) { return __half2float(value); });
    case DataType::bf16:
      return decode_each<__nv_bfloat16>(bytes, [](__nv_bfloat16 value) { return __bfloat162float(value); });
    default:
      refuse(type);
  }
}

}  // namespace annulus::cuda
