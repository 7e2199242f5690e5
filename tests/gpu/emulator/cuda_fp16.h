#pragma once

// CUDA's half precision, on the compiler's own: conversions round to the nearest even.

#include "tests/gpu/emulator/device_language.h"

struct __half_raw {
  unsigned short x;
};

struct __half {
  __half() = default;
  constexpr __half(float value) : value_(static_cast<_Float16>(value)) {}
  constexpr __half(double value) : value_(static_cast<_Float16>(value)) {}
  constexpr __half(int value) : value_(static_cast<_Float16>(value)) {}
  constexpr __half(const __half_raw& raw) : value_(std::bit_cast<_Float16>(raw.x)) {}

  constexpr operator float() const { return static_cast<float>(value_); }
  constexpr operator __half_raw() const { return {std::bit_cast<unsigned short>(value_)}; }

 private:
  _Float16 value_;
};
using half = __half;

struct alignas(4) __half2 {
  __half x, y;
};
using half2 = __half2;

inline float __half2float(__half value) {
  return value;
}
inline __half __float2half_rn(float value) {
  return value;
}
inline __half __float2half(float value) {
  return value;
}
inline unsigned short __half_as_ushort(__half value) {
  return static_cast<__half_raw>(value).x;
}
inline __half __ushort_as_half(unsigned short bits) {
  return __half_raw{bits};
}

inline __half2 __halves2half2(__half x, __half y) {
  return {x, y};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {x, y};
}
inline __half2 __float22half2_rn(float2 pair) {
  return {pair.x, pair.y};
}
inline __half2 __float2half2_rn(float value) {
  return {value, value};
}
inline float2 __half22float2(__half2 pair) {
  return {pair.x, pair.y};
}
inline __half __low2half(__half2 pair) {
  return pair.x;
}
inline __half __high2half(__half2 pair) {
  return pair.y;
}
inline float __low2float(__half2 pair) {
  return pair.x;
}
inline float __high2float(__half2 pair) {
  return pair.y;
}

// Rounding a sum or product of two halves to float first gives the same half as rounding once.
inline __half __hadd(__half x, __half y) {
  return static_cast<float>(x) + static_cast<float>(y);
}
inline __half __hsub(__half x, __half y) {
  return static_cast<float>(x) - static_cast<float>(y);
}
inline __half __hmul(__half x, __half y) {
  return static_cast<float>(x) * static_cast<float>(y);
}
inline __half2 __hadd2(__half2 x, __half2 y) {
  return {__hadd(x.x, y.x), __hadd(x.y, y.y)};
}
inline __half2 __hmul2(__half2 x, __half2 y) {
  return {__hmul(x.x, y.x), __hmul(x.y, y.y)};
}
