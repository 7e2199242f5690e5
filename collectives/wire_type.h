#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace annulus {

// The number format of values in messages between ranks. They are always added in float32.
enum class WireType {
  fp32,
  bf16,  // the upper half of a float32: its range, 8 bits of precision
  fp16,  // IEEE 754's half precision: 11 bits, but nothing beyond 65,504 and little below 6e-5
};

// "fp32", "bf16", "fp16"; throws Error for anything else.
WireType parse_wire_type(const std::string& name);
std::string to_string(WireType wire);

// Conversions to and from the two 16-bit formats, rounding to nearest, ties to even. A NaN stays a NaN.
void encode(WireType wire, std::span<const float> values, std::span<std::uint16_t> coded);
void decode(WireType wire, std::span<const std::uint16_t> coded, std::span<float> values);
void round_to(WireType wire, std::span<float> values);  // encode() followed by decode()

}  // namespace annulus
