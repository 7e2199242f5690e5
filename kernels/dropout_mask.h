#pragma once

#include <cstdint>

#include "kernels/base/random.h"

namespace annulus {

// A dropout's mask: the elements of a sample that are kept. The mask depends on the sample's key in this epoch, the
// dropout's number in the network, and the element's index in the sample ({channels, height, width} in row-major
// order), so it is the same on every device and for any batch.
struct DropoutMask {
  // Keeps an element if the upper half of mix(key, number, element) is at least rate x 2^32.
  constexpr DropoutMask(float rate, std::uint32_t dropout)
      : number(dropout), threshold(static_cast<std::uint64_t>(double{rate} * 0x1p32)), factor(1 / (1 - rate)) {}

  // The part of the computation that a sample's elements share; passed to at().
  constexpr std::uint64_t of_sample(std::int32_t key) const { return mix(static_cast<std::uint32_t>(key), number); }

  // Returns the factor that an element is multiplied by. If whole samples are dropped, element 0's factor applies to
  // all.
  constexpr float at(std::uint64_t sample, std::uint64_t element) const {
    return mix(sample ^ element) >> 32 >= threshold ? factor : 0;
  }

  std::uint64_t number, threshold;
  float factor;
};

// at() relies on this: mix(key, number, element) is mix(mix(key, number) ^ element).
static_assert(mix(5, 7, 9) == mix(mix(5, 7) ^ 9));

}  // namespace annulus
