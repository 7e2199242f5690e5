#include "tests/gpu/emulator/cuda_bf16.h"
#include "tests/gpu/emulator/cuda_fp16.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint16_t half_bits(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
std::uint16_t bfloat_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

}  // namespace

TEST_CASE("every half and bfloat16 round-trips through float") {
  int wrong = 0, nans = 0;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto word = static_cast<unsigned short>(bits);
    const float fp16 = __half2float(__ushort_as_half(word)), bf16 = __bfloat162float(__ushort_as_bfloat16(word));
    nans += std::isnan(fp16) + std::isnan(bf16);
    wrong += !std::isnan(fp16) && half_bits(fp16) != word;
    wrong += !std::isnan(bf16) && bfloat_bits(bf16) != word;
  }
  CHECK(wrong == 0);
  CHECK(nans == 2 * 1023 + 2 * 127);
}

TEST_CASE("halves are rounded to nearest, ties to even") {
  CHECK(half_bits(1.0f) == 0x3c00);
  CHECK(half_bits(-2.0f) == 0xc000);
  CHECK(half_bits(1.0f + 0x1p-11f) == 0x3c00);
  CHECK(half_bits(1.0f + 0x1p-11f + 0x1p-20f) == 0x3c01);
  CHECK(half_bits(1.0f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(half_bits(65519.0f) == 0x7bff);
  CHECK(half_bits(65520.0f) == 0x7c00);
  CHECK(half_bits(-kInfinity) == 0xfc00);
  CHECK(half_bits(0x1p-24f) == 0x0001);
  CHECK(half_bits(0x1p-25f) == 0x0000);
  CHECK(half_bits(-0.0f) == 0x8000);
  CHECK(std::isnan(__half2float(__float2half_rn(NAN))));
  CHECK(static_cast<float>(__hadd(__half(2048.0f), __half(1.0f))) == 2048.0f);
  CHECK(static_cast<float>(__hmul(__half(3.0f), __half(0.5f))) == 1.5f);
}

TEST_CASE("bfloat16 values are rounded to nearest, ties to even") {
  CHECK(bfloat_bits(1.0f) == 0x3f80);
  CHECK(bfloat_bits(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(bfloat_bits(1.0f + 0x1p-8f + 0x1p-20f) == 0x3f81);
  CHECK(bfloat_bits(1.0f + 3 * 0x1p-8f) == 0x3f82);
  CHECK(bfloat_bits(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(bfloat_bits(-kInfinity) == 0xff80);
  CHECK(bfloat_bits(__uint_as_float(0x00008001)) == 0x0001);  // far below the normal ones
  CHECK(bfloat_bits(__uint_as_float(0x7f800001)) == 0x7fff);  // a NaN whose upper half is infinity
  const float2 pair = __bfloat1622float2(__floats2bfloat162_rn(1.5f, 257.0f));
  CHECK(pair.x == 1.5f);
  CHECK(pair.y == 256.0f);
}
