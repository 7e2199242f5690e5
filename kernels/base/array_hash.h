#pragma once

#include <cstdint>

namespace annulus {

// A hash to which an array's parts add in any order. Neighbouring float32 values are a word, w(0), w(1), ...; a last
// value without a partner is paired with 0. A single flipped bit changes `words`; values that change places change
// `products` (as in Yann Collet's XXH3).
struct ArrayHash {
  static constexpr std::uint64_t kKey = 0x9e3779b97f4a7c15;

  std::uint64_t words = 0;     // all w(i) added up
  std::uint64_t products = 0;  // upper x lower half, in w(i) xor (i + 1) kKey

  bool operator==(const ArrayHash&) const = default;
};

}  // namespace annulus
