#pragma once

#include "src/data/image.h"

namespace annulus {

// JPEG and PNG files in memory, by libjpeg-turbo and libpng. Whatever they hold comes out with 8 bits and 1 or 3
// channels: colours are made of gray, gray is made of colours (0.299 R + 0.587 G + 0.114 B), 16 bits are rounded to 8,
// palettes are looked up, and transparency and orientation are ignored, all as PIL's convert("RGB") and convert("L")
// do.
//
// Throws Error, a line that says what is wrong with the image, where it is of an unknown kind, damaged, cut off, or
// larger than kMostPixels. libjpeg goes on at damaged data with a warning; here that is an Error as well.

enum class Encoding { unknown, jpeg, png };

constexpr std::size_t kMostPixels = 100'000'000;

Encoding encoding_of(std::span<const std::uint8_t> bytes);  // by the first bytes

ImageSize image_size(std::span<const std::uint8_t> bytes);  // by the header

void decode(std::span<const std::uint8_t> bytes, std::size_t channels, Image& into);

// As much of the image as `crop`, which lies within it, takes, on the smallest scale (1, 1/2, 1/4, 1/8: those that JPEG
// decodes at less cost) at which the crop has at least the size `least`; at scale 1 if it has no such size. Returns
// where in `into` the crop is. What lies outside the crop need not be looked at, so damage there may go unseen.
Window decode_crop(std::span<const std::uint8_t> bytes, std::size_t channels, const Window& crop,
                   const ImageSize& least, Image& into);

}  // namespace annulus
