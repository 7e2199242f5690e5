#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace annulus {

// A sum whose bits do not depend on the addition order: terms are added as integers with many digits, without rounding
// (Kulisch, "Computer arithmetic and validity", 2008, the long accumulator). Threads and ranks each add their own
// terms, and then all sums:
//
//    ExactSum sum;
//    sum.add(mine);
//    sum += another_threads;
//    sum.write(digits);  all-reduce digits;  sum.read(digits);
//
// Made for squares of float32 numbers.
class ExactSum {
 public:
  // At most 2048 terms, faster if no term but zero is less than 2^-40 times the largest. REQUIRES: a term is 0, or at
  // least 2^-300, which any square of a float32 number is, and at most 2^260; or it is not finite, and then neither is
  // the sum. There are at most 2^31 terms in all.
  void add(std::span<const double> terms);
  ExactSum& operator+=(const ExactSum& other);
  double value() const;

  // The sum as numbers that are added exactly in float32, in any order, for up to 8192 ranks.
  static constexpr std::size_t kDigits = 67;
  using Digits = std::span<float, kDigits>;
  void write(Digits to) const;
  void read(std::span<const float, kDigits> from);

 private:
  // The sum is limbs[i] * 2^(32 i - 392), added over i. A limb has room for carries.
  using Limbs = std::array<std::uint64_t, 22>;
  static constexpr int kLimbBits = 32, kLowest = -392;

  void add_product(std::uint64_t factor, std::uint64_t exponent);
  Limbs carried() const;

  Limbs limbs_{};
  double not_finite_ = 0;  // the sum of terms that are not finite
};

}  // namespace annulus
