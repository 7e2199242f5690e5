#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace annulus::cuda {

// The position of the `index`-th vector in images of the given size.
struct Place {
  unsigned image, row, column, vector;

  __device__ Place(unsigned index, unsigned height, unsigned width, unsigned vectors)
      : image(index / vectors / width / height),
        row(index / vectors / width % height),
        column(index / vectors % width),
        vector(index % vectors) {}
};

// Returns the index of the same vector at another pixel of the image, or of a corresponding image of another size.
__device__ inline std::size_t vector_at(const Place& place, unsigned height, unsigned width, unsigned vectors,
                                        unsigned row, unsigned column) {
  return ((std::size_t{place.image} * height + row) * width + column) * vectors + place.vector;
}

}  // namespace annulus::cuda
