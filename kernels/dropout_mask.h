#pragma once

#include <cstdint>

#include "kernels/base/random.h"

namespace annulus {

// Which elements of a sample a dropout keeps: a function of the sample's key in this epoch, of the dropout's number in
// its network, and of the element's place in the sample, {channels, height, width} in row-major order. The same on
// every device, for any batch.
struct DropoutMask {
  // An element is kept where the upper half of mix(key, number, element) is from rate x 2^32 on.
  constexpr DropoutMask(float rate, std::uint32_t dropout)
      : number(dropout), threshold(static_cast<std::uint64_t>(double{rate} * 0x1p32)), factor(1 / (1 - rate)) {}

  // What is the same for all elements of a sample.
  constexpr std::uint64_t of_sample(std::int32_t key) const { return mix(static_cast<std::uint32_t>(key), number); }

  // What an element is multiplied by.
  constexpr float at(std::uint64_t sample, std::uint64_t element) const {
    return mix(sample ^ element) >> 32 >= threshold ? factor : 0;
  }

  std::uint64_t number, threshold;
  float factor;
};

// At hand: mix(key, number, element) is mix(mix(key, number) ^ element).
static_assert(mix(5, 7, 9) == mix(mix(5, 7) ^ 9));

}  // namespace annulus
