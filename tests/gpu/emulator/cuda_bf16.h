#pragma once

// CUDA's bfloat16: the upper half of a float. Conversions round to the nearest even.

#include "tests/gpu/emulator/device_language.h"

struct __nv_bfloat16_raw {
  unsigned short x;
};

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  constexpr __nv_bfloat16(float value) : bits_(rounded(value)) {}
  constexpr __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits_(raw.x) {}

  constexpr operator float() const { return std::bit_cast<float>(static_cast<unsigned>(bits_) << 16); }
  constexpr operator __nv_bfloat16_raw() const { return {bits_}; }

 private:
  static constexpr unsigned short rounded(float value) {
    if (value != value) return 0x7fff;  // as CUDA does
    const auto bits = std::bit_cast<unsigned>(value);
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }

  unsigned short bits_;
};
using nv_bfloat16 = __nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 value) {
  return value;
}
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  return value;
}
inline __nv_bfloat16 __float2bfloat16(float value) {
  return value;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) {
  return static_cast<__nv_bfloat16_raw>(value).x;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __nv_bfloat16_raw{bits};
}

inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
  return {x, y};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {x, y};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 pair) {
  return {pair.x, pair.y};
}
inline __nv_bfloat162 __float2bfloat162_rn(float value) {
  return {value, value};
}
inline float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return {pair.x, pair.y};
}
inline float __low2float(__nv_bfloat162 pair) {
  return pair.x;
}
inline float __high2float(__nv_bfloat162 pair) {
  return pair.y;
}

inline __nv_bfloat16 __hadd(__nv_bfloat16 x, __nv_bfloat16 y) {
  return static_cast<float>(x) + static_cast<float>(y);
}
inline __nv_bfloat16 __hsub(__nv_bfloat16 x, __nv_bfloat16 y) {
  return static_cast<float>(x) - static_cast<float>(y);
}
inline __nv_bfloat16 __hmul(__nv_bfloat16 x, __nv_bfloat16 y) {
  return static_cast<float>(x) * static_cast<float>(y);
}
