#include "kernels/cuda/runtime/columns.h"

#include <algorithm>

namespace annulus::cuda {

Columns::Columns(std::size_t rows_, std::size_t channels_, unsigned lanes, int multiprocessors)
    : rows(rows_), channels(static_cast<unsigned>(channels_)), vectors(channels / lanes) {
  tiles = (vectors + kWidth - 1) / kWidth;
  width = (vectors + tiles - 1) / tiles;
  height = kThreads / width;
  const std::size_t most = std::max(1u, kBlocksEach * static_cast<unsigned>(multiprocessors) / tiles);
  const std::size_t step = std::size_t{height} * kRowsEach;
  stripes = static_cast<unsigned>(std::clamp<std::size_t>((rows + step - 1) / step, 1, most));
}

}  // namespace annulus::cuda
