#pragma once

#include <bit>
#include <cstdint>
#include <limits>

// Elementary functions without branches and calls, which compilers vectorize. Relative errors are a few units in the
// last place. NaN gives NaN.
namespace annulus::cpu {

// exp(x) = 2^n exp(r) with |r| <= log(2) / 2, and a Taylor polynomial for the latter. 0 below -87.3, and infinity above
// 88.3.
inline float exponential(float x) {
  constexpr float kLeast = -87.3f, kLargest = 88.3f, kLog2E = 1.44269504f, kRound = 12582912.0f;  // 1.5 x 2^23
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  float y = x < kLeast ? kLeast : x;
  y = y > kLargest ? kLargest : y;
  const float n = (y * kLog2E + kRound) - kRound;
  const float r = (y - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1;
  const float scaled = p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
  const float finite = x > kLargest ? std::numeric_limits<float>::infinity() : scaled;
  return x < kLeast ? 0 : finite;
}

// log(1 + x) for x from 0 to 1: the series for 2 artanh(x / (2 + x)), in which the first missing term is below 2e-8 of
// the sum.
inline float logarithm_of_one_plus(float x) {
  const float y = x / (2 + x), s = y * y;
  float p = 1.0f / 13;
  p = p * s + 1.0f / 11;
  p = p * s + 1.0f / 9;
  p = p * s + 1.0f / 7;
  p = p * s + 1.0f / 5;
  p = p * s + 1.0f / 3;
  return 2 * y * (p * s + 1);
}

// A rational approximation x P(x^2) / Q(x^2); 1 beyond 4.
inline float error_function(float x) {
  float y = x < -4 ? -4 : x;
  y = y > 4 ? 4 : y;
  const float s = y * y;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  return y * p / q;
}

inline float hyperbolic_tangent(float x) {
  constexpr float kLargest = 7.90531110763549805f;  // beyond it, the nearest number is 1
  float y = x < -kLargest ? -kLargest : x;
  y = y > kLargest ? kLargest : y;
  const float s = y * y;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return y * p / q;
}

inline float logistic(float x) {
  return 1 / (1 + exponential(-x));
}

}  // namespace annulus::cpu
