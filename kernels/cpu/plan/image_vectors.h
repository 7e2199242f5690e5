#pragma once

#include <type_traits>

#include "kernels/cpu/loops/vectors.h"
#include "kernels/cpu/plan/dnnl_memory.h"

// Loops over images in any layout, which process a vector register of channels at a time if possible.
namespace annulus::cpu {

// Calls body(plane, block) for each plane, on all threads. block: how many channels to process at a time, as a
// constant.
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
