#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace annulus::cuda {

// Where the `index`-th vector of images of such a size lies.
struct Place {
  unsigned image, row, column, vector;

  __device__ Place(unsigned index, unsigned height, unsigned width, unsigned vectors)
      : image(index / vectors / width / height),
        row(index / vectors / width % height),
        column(index / vectors % width),
        vector(index % vectors) {}
};

// The number of the vector that is another pixel's in the same image, or in one of another size.
__device__ inline std::size_t vector_at(const Place& place, unsigned height, unsigned width, unsigned vectors,
                                        unsigned row, unsigned column) {
  return ((std::size_t{place.image} * height + row) * width + column) * vectors + place.vector;
}

}  // namespace annulus::cuda
