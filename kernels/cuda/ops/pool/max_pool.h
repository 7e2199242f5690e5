#pragma once

#include <cstdint>

#include "kernels/cuda/ops/loops/divisor.h"
#include "kernels/cuda/ops/loops/image_place.h"
#include "kernels/cuda/ops/loops/vectors.h"

// Max pooling, for the pool's kernels and for a batch norm's before it (fusible_norm.h).
namespace annulus::cuda {

// Windows over images. A row of pixels in an image is `vectors` times 16 bytes.
struct Pool {
  struct Axis {
    unsigned kernel;
    Divisor stride;
    unsigned padding;
  };
  Axis rows, columns;
  Divisor height, width, out_height, out_width, vectors;
};

constexpr unsigned kNoPixel = 255;  // the ReLU was inactive

// Holds, per value in an output vector, the source pixel's number in the window: a byte each.
template <class T>
struct alignas(kLanes<T>) Numbers {
  std::uint32_t words[kLanes<T> / 4];

  __device__ static Numbers of(const unsigned (&numbers)[kLanes<T>]) {
    Numbers packed{};
    for (unsigned i = 0; i < kLanes<T>; ++i) packed.words[i / 4] |= numbers[i] << i % 4 * 8;
    return packed;
  }
  __device__ bool is(unsigned i, unsigned number) const {
    return ((words[i / 4] ^ number * 0x01010101u) >> i % 4 * 8 & 0xffu) == 0;
  }
};

// Returns the gradient of the input's `index`-th vector: sums the gradients of the windows in which it is the largest,
// in the same order in every kernel.
template <class T>
__device__ Vector<T> pooled_gradient(const Pool& pool, const T* output_gradient, const Numbers<T>* from,
                                     unsigned index) {
  constexpr unsigned kBatch = 2;  // loads in flight, in a row of windows
  const Place place(index, pool.height, pool.width, pool.vectors);
  const unsigned row = place.row + pool.rows.padding, column = place.column + pool.columns.padding;
  const unsigned last_column = column / pool.columns.stride;
  Vector<T> sum{};
  // Goes back from the last window that begins at or before the pixel; (y, x) is the pixel's position in the window.
  // Unsigned windows before the first wrap around, and so are beyond the last.
  unsigned window_row = row / pool.rows.stride;
  for (unsigned y = row - window_row * pool.rows.stride; y < pool.rows.kernel; y += pool.rows.stride, --window_row) {
    if (window_row >= pool.out_height) continue;
    unsigned window_column = last_column;
    for (unsigned x = column - last_column * pool.columns.stride; x < pool.columns.kernel;
         x += kBatch * pool.columns.stride, window_column -= kBatch) {
      Packed<T> gradients[kBatch]{};
      Numbers<T> numbers[kBatch]{};
      for (unsigned k = 0; k < kBatch; ++k)
        if (x + k * pool.columns.stride < pool.columns.kernel && window_column - k < pool.out_width) {
          const std::size_t window =
              vector_at(place, pool.out_height, pool.out_width, pool.vectors, window_row, window_column - k);
          gradients[k] = fetch(output_gradient, window);
          numbers[k] = from[window];
        }
      for (unsigned k = 0; k < kBatch; ++k) {
        const unsigned own = y * pool.columns.kernel + x + k * pool.columns.stride;
        const Vector<T> gradient = unpacked<T>(gradients[k]);
        for (unsigned i = 0; i < kLanes<T>; ++i) sum.at[i] += numbers[k].is(i, own) ? gradient.at[i] : 0;
      }
    }
  }
  return sum;
}

}  // namespace annulus::cuda
