#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace annulus::cuda {

// The launch configuration for kernels over a {rows, channels'} matrix that process each channel separately. A block
// takes `height` rows by `width` neighbouring vectors (16 bytes each) at a time and moves down the matrix, so a thread
// always has the same channels and keeps their constants and sums in registers. The order of sums over the rows depends
// only on the sizes: each thread adds up rows, the block adds up threads, and then another kernel, or the blocks that
// arrive last, add up the blocks.
struct Columns {
  static constexpr unsigned kThreads = 256;                     // in a block, or slightly fewer
  static constexpr unsigned kWidth = 32;                        // at most: 512 neighbouring bytes
  static constexpr unsigned kBlocksEach = 3;                    // for each multiprocessor, all resident
  static constexpr unsigned kRowsEach = 4;                      // for each thread, at least
  static constexpr unsigned kSumChannels = 8;                   // in a block that adds up the blocks' sums
  static constexpr unsigned kGroups = kThreads / kSumChannels;  // stripe groups, each summed up first

  Columns(std::size_t rows, std::size_t channels, unsigned lanes, int multiprocessors);

  dim3 grid() const { return {tiles, stripes}; }
  dim3 block() const { return {width, height}; }

  // For the kernel that adds up the blocks' sums.
  dim3 sum_grid() const { return {(channels + kSumChannels - 1) / kSumChannels}; }
  dim3 sum_block() const { return {kSumChannels, kGroups}; }
  std::size_t partial_sums() const { return std::size_t{stripes} * channels; }

  // For kernels that let the last blocks add up all blocks' sums.
  std::size_t counters() const { return std::size_t{tiles} * (kGroups + 1); }

  std::size_t rows;
  unsigned channels, vectors;  // in a row
  unsigned width, height;      // a block's step, in vectors and in rows
  unsigned tiles, stripes;     // how many blocks along a row and along a column
};

}  // namespace annulus::cuda
