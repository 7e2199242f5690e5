#pragma once

#include <span>

#include "kernels/base/shown_image.h"

namespace annulus::cpu {

// See Device::show_images().
void show_images(std::span<const std::uint8_t> set, std::span<const ShownImage> shown, const PixelShape& shape,
                 std::span<std::uint8_t> to);

}  // namespace annulus::cpu
