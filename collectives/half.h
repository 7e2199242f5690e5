#pragma once

#include <bit>
#include <cstdint>

namespace annulus {

// The 16-bit formats, which convert from and to float: to the nearest value, ties to even. A NaN stays a NaN.
using Fp16 = _Float16;

struct Bf16 {
  std::uint16_t bits;

  Bf16() = default;
  explicit Bf16(float value) {
    const auto whole = std::bit_cast<std::uint32_t>(value);
    // Adds half a unit in the last place that is kept, a little less if that would leave a tie at an odd number.
    const std::uint32_t rounded = whole + 0x7fff + ((whole >> 16) & 1);
    bits = static_cast<std::uint16_t>((value != value ? whole | 0x400000 : rounded) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

}  // namespace annulus
