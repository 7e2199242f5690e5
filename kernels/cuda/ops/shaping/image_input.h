#pragma once

#include <cstdint>

#include "kernels/cuda/ops/loops/context.h"

namespace annulus::cuda {

// Raw pixels {batch, height, width, channels}, in device memory.
struct Images {
  const std::uint8_t* pixels;
  std::size_t batch, height, width, channels;
};

// The crop and mirroring for each image in a batch, in device memory; null: none. A mirrored image is read from right
// to left. Output pixels outside the image are black.
struct Augmentation {
  const std::int32_t* rows = nullptr;     // the image's row that is the output's first row; may be negative
  const std::int32_t* columns = nullptr;  // the first column, after mirroring
  const std::uint8_t* mirrored = nullptr;
};

// Writes values in the context's type, in the layout of `values` (ChannelsLast or ImageBlocks): pixel * factor + offset
// for each channel'. Both are 0 for padding channels, and in ImageBlocks repeat for each pixel in a block.
void load_images(const Images& images, const Augmentation& augmentation, const float* factor, const float* offset,
                 const TensorSpec& values, void* to, const Context& context);

}  // namespace annulus::cuda
