#include "kernels/base/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace annulus {
namespace {

constexpr int kDigitBits = 11, kDigitsOfLimb = 3;

// A double is mantissa 2^(exponent - kOffset) with these bits. The mantissa's highest bit is implicit.
constexpr int kMantissaBits = 52, kOffset = 1023 + kMantissaBits;
constexpr std::uint64_t kImplicit = std::uint64_t{1} << kMantissaBits, kNotFinite = 2047;

std::uint64_t bits_of(double term) {
  return std::bit_cast<std::uint64_t>(term);
}

std::uint64_t mantissa_of(std::uint64_t bits) {
  return (bits & (kImplicit - 1)) | kImplicit;
}

}  // namespace

// Adds the terms near the largest as two integers each, which can be done for several terms at a time: the multiple of
// the largest term's last bit, and the remainder.
void ExactSum::add(std::span<const double> terms) {
  constexpr std::uint64_t kPartBits = 40, kPart = (std::uint64_t{1} << kPartBits) - 1;
  std::uint64_t largest = 0;
  for (const double term : terms) largest = std::max(largest, bits_of(term));
  const std::uint64_t exponent = largest >> kMantissaBits;
  if (exponent == 0) return;
  if (exponent >= kNotFinite) {
    for (const double term : terms) not_finite_ += term;
    return;
  }
  std::uint64_t high = 0, low = 0, others = 0;
#pragma omp simd reduction(+ : high, low, others)
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const std::uint64_t bits = bits_of(terms[i]), below = exponent - (bits >> kMantissaBits);
    const bool near = below <= kPartBits;
    const std::uint64_t mantissa = near ? mantissa_of(bits) : 0, shift = near ? below : 0;
    high += mantissa >> shift;
    low += mantissa << (kPartBits - shift) & kPart;
    others += !near && bits != 0 ? 1 : 0;
  }
  add_product(high, exponent);
  add_product(low, exponent - kPartBits);
  if (others == 0) return;
  for (const double term : terms)
    if (const std::uint64_t bits = bits_of(term); bits != 0 && exponent - (bits >> kMantissaBits) > kPartBits)
      add_product(mantissa_of(bits), bits >> kMantissaBits);
}

// Adds factor 2^(exponent - kOffset).
void ExactSum::add_product(std::uint64_t factor, std::uint64_t exponent) {
  constexpr std::uint64_t kLimb = ~std::uint32_t{0};
  const auto place = static_cast<unsigned>(static_cast<int>(exponent) - kOffset - kLowest);
  const unsigned limb = place / kLimbBits, shift = place % kLimbBits;
  const std::uint64_t low = (factor & kLimb) << shift, high = (factor >> kLimbBits) << shift;
  limbs_[limb] += low & kLimb;
  limbs_[limb + 1] += (low >> kLimbBits) + (high & kLimb);
  limbs_[limb + 2] += high >> kLimbBits;
}

ExactSum& ExactSum::operator+=(const ExactSum& other) {
  for (std::size_t i = 0; i < limbs_.size(); ++i) limbs_[i] += other.limbs_[i];
  not_finite_ += other.not_finite_;
  return *this;
}

// Returns the limbs of an equal sum that are all below 2^kLimbBits, except for the last. They are unique.
ExactSum::Limbs ExactSum::carried() const {
  Limbs limbs = limbs_;
  for (std::size_t i = 0; i + 1 < limbs.size(); ++i) {
    limbs[i + 1] += limbs[i] >> kLimbBits;
    limbs[i] &= (std::uint64_t{1} << kLimbBits) - 1;
  }
  return limbs;
}

double ExactSum::value() const {
  const Limbs limbs = carried();
  double sum = 0;
  for (std::size_t i = limbs.size(); i-- > 0;)
    sum += std::ldexp(static_cast<double>(limbs[i]), kLimbBits * static_cast<int>(i) + kLowest);
  return sum + not_finite_;
}

void ExactSum::write(Digits to) const {
  const Limbs limbs = carried();
  for (std::size_t i = 0; i < to.size() - 1; ++i) {
    const std::size_t digit = i % kDigitsOfLimb;
    to[i] = static_cast<float>((limbs[i / kDigitsOfLimb] >> (digit * kDigitBits)) & ((1u << kDigitBits) - 1));
  }
  to.back() = static_cast<float>(not_finite_);
}

void ExactSum::read(std::span<const float, kDigits> from) {
  limbs_ = {};
  for (std::size_t i = 0; i < from.size() - 1; ++i)
    limbs_[i / kDigitsOfLimb] += static_cast<std::uint64_t>(from[i]) << (i % kDigitsOfLimb * kDigitBits);
  not_finite_ = from.back();
}

}  // namespace annulus
