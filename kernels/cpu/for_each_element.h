#pragma once

#include <cstddef>

namespace annulus::cpu {

// Below this many elements waking the other threads costs more than they save.
constexpr std::ptrdiff_t kParallelElements = 1 << 15;

// Calls body(i) for each i below `size`, vectorized, and on all threads where that pays.
template <class Body>
void for_each_element(std::size_t size, const Body& body) {
  const auto end = static_cast<std::ptrdiff_t>(size);
#pragma omp parallel for simd schedule(static) if (end >= kParallelElements)
  for (std::ptrdiff_t i = 0; i < end; ++i) body(i);
}

}  // namespace annulus::cpu
