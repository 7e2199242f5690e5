#pragma once

#include <cuda_runtime.h>

#include <bit>

namespace annulus::cuda {

// A divisor that kernels divide by often: a product and shifts instead of a division (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994, figure 4.1). REQUIRES: it is not 0.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(unsigned value) : value_(value) {
    const int bits = std::bit_width(value - 1);  // value <= 2^bits
    factor_ = static_cast<unsigned>(((1ull << 32) * ((1ull << bits) - value)) / value + 1);
    first_shift_ = bits > 0 ? 1 : 0;
    second_shift_ = bits > 0 ? static_cast<unsigned>(bits) - 1 : 0;
  }

  __host__ __device__ operator unsigned() const { return value_; }
  __device__ friend unsigned operator/(unsigned dividend, const Divisor& by) {
    const unsigned product = __umulhi(by.factor_, dividend);
    return (product + ((dividend - product) >> by.first_shift_)) >> by.second_shift_;
  }
  __device__ friend unsigned operator%(unsigned dividend, const Divisor& by) {
    return dividend - dividend / by * by.value_;
  }

 private:
  unsigned value_ = 1, factor_ = 1, first_shift_ = 0, second_shift_ = 0;
};

}  // namespace annulus::cuda
