#include "collectives/wire_type.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
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

// Converts arrays of a 16-bit format.
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

// A message has the scales of all blocks, and then the integers.
struct Int8Codec {
  // The largest absolute value / 127, rounded up to 16 bits: 127 times that is exact, so rounded values have the same
  // scale. 0 if it would be subnormal; NaN if a value is not finite.
  static float scale_of(std::span<const float> values) {
    std::uint32_t largest = 0;  // the bits of absolute values are in the order of their values, NaN above all
    for (const float value : values) largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
    const float exact = std::bit_cast<float>(largest) / 127;
    if (!std::isfinite(exact)) return std::numeric_limits<float>::quiet_NaN();
    if (exact < std::numeric_limits<float>::min()) return 0;
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(exact) + 0xffu) & ~0xffu);
  }

  static void encode(std::span<const float> values, std::byte* coded) {
    auto* const scales = reinterpret_cast<float*>(coded);
    auto* const integers = reinterpret_cast<std::int8_t*>(scales + blocks(values.size()));
    for_each_block(values, [&](std::size_t block, std::span<const float> part) {
      const float scale = scale_of(part), inverse = scale > 0 ? 1 / scale : 0;
      scales[block] = scale;
      auto* const to = integers + block * kInt8Block;
      // The sum has the rounded value in its lowest bits, as a two's complement.
      for (std::size_t i = 0; i < part.size(); ++i)
        to[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(part[i] * inverse + 0x1.8p23f));
    });
  }

  static void decode(const std::byte* coded, std::span<float> values) {
    const auto* const scales = reinterpret_cast<const float*>(coded);
    const auto* const integers = reinterpret_cast<const std::int8_t*>(scales + blocks(values.size()));
    for_each_block(values, [&](std::size_t block, std::span<float> part) {
      const auto* const from = integers + block * kInt8Block;
      for (std::size_t i = 0; i < part.size(); ++i) part[i] = scales[block] * from[i];
    });
  }

  static void round(std::span<float> values) {
    for_each_block(values, [](std::size_t, std::span<float> part) {
      alignas(float) std::array<std::byte, sizeof(float) + kInt8Block> coded;
      encode(part, coded.data());
      decode(coded.data(), part);
    });
  }

  static std::size_t blocks(std::size_t count) { return (count + kInt8Block - 1) / kInt8Block; }

 private:
  template <class Value, class Visit>
  static void for_each_block(std::span<Value> values, const Visit& visit) {
    for (std::size_t block = 0; block < blocks(values.size()); ++block) {
      const std::size_t begin = block * kInt8Block;
      visit(block, values.subspan(begin, std::min(kInt8Block, values.size() - begin)));
    }
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
    case WireType::int8:
      return body(Int8Codec{});
  }
}

constexpr std::array<std::pair<const char*, WireType>, 4> kNames{
    {{"fp32", WireType::fp32}, {"bf16", WireType::bf16}, {"fp16", WireType::fp16}, {"int8", WireType::int8}}};

}  // namespace

WireType parse_wire_type(const std::string& name) {
  for (const auto& [known, wire] : kNames)
    if (name == known) return wire;
  fail("unknown wire format \"{}\"; choose one of: fp32, bf16, fp16, int8", name);
}

std::string to_string(WireType wire) {
  return std::ranges::find(kNames, wire, &std::pair<const char*, WireType>::second)->first;
}

std::size_t coded_bytes(WireType wire, std::size_t count) {
  if (wire == WireType::fp32) return count * sizeof(float);
  if (wire == WireType::int8) return count + Int8Codec::blocks(count) * sizeof(float);
  return count * sizeof(std::uint16_t);
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
