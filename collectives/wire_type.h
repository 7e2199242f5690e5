#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace annulus {

// Number format of messages between ranks. Values are always added in float32.
enum class WireType {
  fp32,
  bf16,  // the upper half of a float32: full range, 8 bits of precision
  fp16,  // IEEE 754's half precision: 11 bits, but nothing beyond 65,504 and little below 6e-5
};

// "fp32", "bf16", "fp16"; throws Error for anything else.
WireType parse_wire_type(const std::string& name);
std::string to_string(WireType wire);

std::size_t coded_bytes(WireType wire, std::size_t count);  // for `count` values in a message

// Conversions to and from the formats other than fp32, rounding to nearest, ties to even. A NaN stays a NaN. Rounded
// values do not change when they are encoded again. `coded` has coded_bytes().
void encode(WireType wire, std::span<const float> values, std::span<std::byte> coded);
void decode(WireType wire, std::span<const std::byte> coded, std::span<float> values);
void round_to(WireType wire, std::span<float> values);  // encode() followed by decode()

}  // namespace annulus
