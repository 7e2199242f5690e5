#include "collectives/wire_type.h"

#include <algorithm>
#include <array>
#include <utility>

#include "collectives/half.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

// Converts arrays to and from a 16-bit format.
template <class T>
struct HalfCodec {
  static void encode(std::span<const float> values, std::byte* coded) {
    T* const to = reinterpret_cast<T*>(coded);
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = static_cast<T>(values[i]);
  }
  static void decode(const std::byte* coded, std::span<float> values) {
    const T* const from = reinterpret_cast<const T*>(coded);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(from[i]);
  }
  static void round(std::span<float> values) {
    for (float& value : values) value = static_cast<float>(static_cast<T>(value));
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
