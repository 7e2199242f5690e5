#include "kernels/cpu/loops/show_images.h"

#include <algorithm>
#include <cstdlib>

namespace annulus::cpu {
namespace {

std::uint32_t reflected(std::int64_t position, std::uint32_t size) {
  const std::int64_t last = std::int64_t{size} - 1;
  return static_cast<std::uint32_t>(last - std::abs(last - std::abs(position)));
}

}  // namespace

void show_images(std::span<const std::uint8_t> set, std::span<const ShownImage> shown, const PixelShape& shape,
                 std::span<std::uint8_t> to) {
  auto next = to.begin();
  for (const ShownImage& image : shown) {
    const auto pixels = set.subspan(std::size_t{image.number} * shape.bytes(), shape.bytes());
    for (std::uint32_t y = 0; y < shape.height; ++y)
      for (std::uint32_t x = 0; x < shape.width; ++x) {
        const std::int64_t row = std::int64_t{y} - image.down;
        const std::int64_t column = std::int64_t{image.mirrored != 0 ? shape.width - 1 - x : x} - image.right;
        const bool inside = row >= 0 && row < shape.height && column >= 0 && column < shape.width;
        if (inside || image.reflected != 0)
          next = std::ranges::copy(pixels.subspan((std::size_t{reflected(row, shape.height)} * shape.width +
                                                   reflected(column, shape.width)) *
                                                      shape.channels,
                                                  shape.channels),
                                   next)
                     .out;
        else
          next = std::fill_n(next, shape.channels, std::uint8_t{0});
      }
  }
}

}  // namespace annulus::cpu
