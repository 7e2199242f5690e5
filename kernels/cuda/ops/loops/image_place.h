#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace annulus::cuda {

// The position of the `index`-th vector in images of the given size: in numbers or in Divisors.
struct Place {
  unsigned image, row, column, vector;

  template <class Height, class Width, class Vectors>
  __device__ Place(unsigned index, const Height& height, const Width& width, const Vectors& vectors)
      : image(index / vectors / width / height),
        row(index / vectors / width % height),
        column(index / vectors % width),
        vector(index % vectors) {}
};

// Returns the index of the same vector at another pixel in the image, or in a corresponding image with another size.
__device__ inline std::size_t vector_at(const Place& place, unsigned height, unsigned width, unsigned vectors,
                                        unsigned row, unsigned column) {
  return ((std::size_t{place.image} * height + row) * width + column) * vectors + place.vector;
}

}  // namespace annulus::cuda
