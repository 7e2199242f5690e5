#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace annulus::cuda {

// Kernels over a {rows, channels'} matrix that treat each channel by itself. A block takes `width` neighbouring vectors
// of 16 bytes of `height` rows at a time and goes down the matrix, so a thread stays with its channels: what belongs to
// those is in registers. Sums over the rows are made in an order that depends on nothing but the sizes: each thread
// adds up its rows, the block its threads, and another kernel the blocks.
struct Columns {
  static constexpr unsigned kThreads = 256;    // of a block, or a few less
  static constexpr unsigned kWidth = 32;       // at most: 512 neighbouring bytes
  static constexpr unsigned kBlocksEach = 3;   // for each multiprocessor, all of them at once
  static constexpr unsigned kRowsEach = 4;     // for each thread, at least
  static constexpr unsigned kSumChannels = 8;  // of a block that adds up blocks

  Columns(std::size_t rows, std::size_t channels, unsigned lanes, int multiprocessors);

  dim3 grid() const { return {tiles, stripes}; }
  dim3 block() const { return {width, height}; }

  // For the kernel that adds up the blocks' sums.
  dim3 sum_grid() const { return {(channels + kSumChannels - 1) / kSumChannels}; }
  dim3 sum_block() const { return {kSumChannels, kThreads / kSumChannels}; }
  std::size_t partial_sums() const { return std::size_t{stripes} * channels; }

  std::size_t rows;
  unsigned channels, vectors;  // of a row
  unsigned width, height;      // of a block's step, in vectors and in rows
  unsigned tiles, stripes;     // blocks beside and below each other
};

}  // namespace annulus::cuda
