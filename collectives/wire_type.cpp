#include "collectives/wire_type.h"

#include <algorithm>
#include <array>
#include <bit>
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

// Converts arrays to and from a 16-bit format.
template <class Format>
struct HalfCodec {
  static void encode(std::span<const float> values, std::byte* coded) {
    auto* const to = reinterpret_cast<std::uint16_t*>(coded);
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = Format::encode(values[i]);
  }
  static void decode(const std::byte* coded, std::span<float> values) {
    const auto* const from = reinterpret_cast<const std::uint16_t*>(coded);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = Format::decode(from[i]);
  }
  static void round(std::span<float> values) {
    for (float& value : values) value = Format::decode(Format::encode(value));
  }
};

// Calls `body` with the codec as a type, so that loops are compiled for it.
template <class Body>
void with_codec(WireType wire, const Body& body) {
  switch (wire) {
    case WireType::fp32:
      fail("fp32 is not encoded");
    case WireType::bf16:
      return body(HalfCodec<Bf16>{});
    case WireType::fp16:
      return body(HalfCodec<Fp16>{});
  }
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

std::size_t coded_bytes(WireType wire, std::size_t count) {
  return count * (wire == WireType::fp32 ? sizeof(float) : sizeof(std::uint16_t));
}

void encode(WireType wire, std::span<const float> values, std::span<std::byte> coded) {
  with_codec(wire, [&]<class Codec>(Codec) { Codec::encode(values, coded.data()); });
}

void decode(WireType wire, std::span<const std::byte> coded, std::span<float> values) {
  with_codec(wire, [&]<class Codec>(Codec) { Codec::decode(coded.data(), values); });
}

void round_to(WireType wire, std::span<float> values) {
  with_codec(wire, [&]<class Codec>(Codec) { Codec::round(values); });
}

}  // namespace annulus
