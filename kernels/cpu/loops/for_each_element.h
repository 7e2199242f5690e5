#pragma once

#include <cstddef>

namespace annulus::cpu {

// Below this many elements waking the other threads costs more than they save.
constexpr std::ptrdiff_t kParallelElements = 1 << 15;

// Calls body(i) for each i below `size`, vectorized, and on all threads if `size` is large enough. `body` captures by
// value: each thread keeps its own copy, or g++ fetches the captures for every element, with AVX-512 by gathers, which
// took ten times as long.
template <class Body>
void for_each_element(std::size_t size, const Body& body) {
  const auto end = static_cast<std::ptrdiff_t>(size);
#pragma omp parallel if (end >= kParallelElements)
  {
    const Body own = body;
#pragma omp for simd schedule(static)
    for (std::ptrdiff_t i = 0; i < end; ++i) own(i);
  }
}

}  // namespace annulus::cpu
