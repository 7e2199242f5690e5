#pragma once

#include <cstddef>
#include <cstdint>

namespace annulus::cpu {

constexpr std::size_t kVector = 8;  // floats that are processed at a time by default

// Channels in a block of the layouts that oneDNN chooses on the processors that this is compiled for: as many as a
// vector register has floats. If oneDNN chooses another size, as with AVX-512 for a program that was not compiled for
// it, kernels that need such a layout are not used.
#ifdef __AVX512F__
constexpr std::size_t kChannelBlock = 16;
#else
constexpr std::size_t kChannelBlock = 8;
#endif

// Vectors of `size` values.
template <std::size_t size>
struct Lanes {
  typedef float Floats __attribute__((vector_size(size * sizeof(float))));
  typedef std::int32_t Ints __attribute__((vector_size(size * sizeof(float))));
  typedef std::uint8_t Bytes __attribute__((vector_size(size)));
};

// Load from and store to any address, aligned or not.
template <class Vector, class Element>
Vector load(const Element* from) {
  Vector values;
  __builtin_memcpy(&values, from, sizeof values);
  return values;
}

template <class Vector, class Element>
void store(Vector values, Element* to) {
  __builtin_memcpy(to, &values, sizeof values);
}

}  // namespace annulus::cpu
