#pragma once

#include <cstdint>

#include "kernels/cuda/ops/context.h"

namespace annulus::cuda {

// Raw pixels {batch, height, width, channels}, in device memory.
struct Images {
  const std::uint8_t* pixels;
  std::size_t batch, height, width, channels;
};

// What each image of a batch goes through, in device memory; null: nothing. A mirrored image is read from right to
// left. What of the output lies outside of the image is black.
struct Augmentation {
  const std::int32_t* rows = nullptr;     // of the image, where the output's first row lies; may be negative
  const std::int32_t* columns = nullptr;  // likewise, of what is mirrored or not
  const std::uint8_t* mirrored = nullptr;
};

// Writes values {batch, height, width, channels'} of the context's type: pixel * factor + offset, by channel'. Both are
// 0 for channels that are added.
void load_images(const Images& images, const Augmentation& augmentation, const float* factor, const float* offset,
                 std::size_t height, std::size_t width, void* values, const Context& context);

}  // namespace annulus::cuda
