#include "collectives/wire_type.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/base/error.h"

namespace annulus {
namespace {

struct Bf16 {
  static std::uint16_t encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    // Adds half a unit in the last place that is kept, a little less if that would leave a tie at an odd number.
    const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return static_cast<std::uint16_t>((value != value ? bits | 0x400000 : rounded) >> 16);
  }
  static float decode(std::uint16_t coded) { return std::bit_cast<float>(static_cast<std::uint32_t>(coded) << 16); }
};

struct Fp16 {
  static std::uint16_t encode(float value) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value)); }
  static float decode(std::uint16_t coded) { return static_cast<float>(std::bit_cast<_Float16>(coded)); }
};

// Calls `body` with the format as a type, so that loops are compiled for it.
template <class Body>
void with_format(WireType wire, const Body& body) {
  if (wire == WireType::bf16)
    body(Bf16{});
  else
    body(Fp16{});
}

constexpr std::array<std::pair<const char*, WireType>, 3> kNames{
    {{"fp32", WireType::fp32}, {"bf16", WireType::bf16}, {"fp16", WireType::fp16}}};

}  // namespace

WireType parse_wire_type(const std::string& name) {
  for (const auto& [known, wire] : kNames)
    if (name == known) return wire;
  fail("unknown wire format \"{}\"; choose one of: fp32, bf16, fp16", name);
}

std::string to_string(WireType wire) {
  return std::ranges::find(kNames, wire, &std::pair<const char*, WireType>::second)->first;
}

void encode(WireType wire, std::span<const float> values, std::span<std::uint16_t> coded) {
  with_format(wire, [from = values.data(), to = coded.data(), count = values.size()]<class Format>(Format) {
    for (std::size_t i = 0; i < count; ++i) to[i] = Format::encode(from[i]);
  });
}

void decode(WireType wire, std::span<const std::uint16_t> coded, std::span<float> values) {
  with_format(wire, [from = coded.data(), to = values.data(), count = values.size()]<class Format>(Format) {
    for (std::size_t i = 0; i < count; ++i) to[i] = Format::decode(from[i]);
  });
}

void round_to(WireType wire, std::span<float> values) {
  with_format(wire, [at = values.data(), count = values.size()]<class Format>(Format) {
    for (std::size_t i = 0; i < count; ++i) at[i] = Format::decode(Format::encode(at[i]));
  });
}

}  // namespace annulus
