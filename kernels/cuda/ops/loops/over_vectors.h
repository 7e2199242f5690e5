#pragma once

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/cuda/ops/loops/vectors.h"

namespace annulus::cuda {

// Launches a kernel over 16-byte vectors; the vector count is the kernel's last argument.
template <class... Parameters, class... Arguments>
void over_vectors(void (*kernel)(Parameters...), std::size_t vectors, const Context& context, Arguments... arguments) {
  constexpr unsigned kThreads = 256;
  if (vectors > 0)
    launch(kernel, blocks_for(vectors, kThreads, context.multiprocessors), kThreads, context.lane.get(), arguments...,
           vectors);
}

// to = a + b; may be in place.
template <class T>
__global__ void add_vectors(Predecessor previous, const T* a, const T* b, T* to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Vector<T> more = load(b, i);
    Vector<T> sum = load(a, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += more.at[k];
    store(sum, to, i);
  }
}

}  // namespace annulus::cuda
