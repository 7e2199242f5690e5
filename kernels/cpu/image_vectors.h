#pragma once

#include <type_traits>

#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/vectors.h"

// Loops over images in any layout, that take as many channels at once as a vector register holds, where they can.
namespace annulus::cpu {

// Calls body(plane, block): planes on all threads; block is how many channels to take at once, as a constant.
template <class Body>
void for_each_plane(const ImageLayout& images, const Body& body) {
  const bool vectors = images.inner % kVector == 0;
#pragma omp parallel for schedule(static)
  for (std::size_t outer = 0; outer < images.outer; ++outer)
    if (vectors)
      body(outer, std::integral_constant<std::size_t, kVector>{});
    else
      body(outer, std::integral_constant<std::size_t, 1>{});
}

}  // namespace annulus::cpu
