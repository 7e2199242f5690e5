#pragma once

#include <optional>

#include "kernels/base/split.h"
#include "src/data/image.h"

namespace annulus {

// Decodes JPEG and PNG files in memory, with libjpeg-turbo and libpng. The output has 8 bits and 1 or 3 channels: gray
// is expanded to colours, colours are reduced to gray (0.299 R + 0.587 G + 0.114 B), 16 bits are rounded to 8, palettes
// are looked up, and transparency and orientation are ignored, all as in PIL's convert("RGB") and convert("L").
//
// Throws Error, a line that describes the problem, if the image's kind is unknown, or the image is damaged, truncated,
// or larger than kMostPixels. At damaged data libjpeg warns and continues; here that is an Error as well.

enum class Encoding { unknown, jpeg, png };

constexpr std::size_t kMostPixels = 100'000'000;

Encoding encoding_of(std::span<const std::uint8_t> bytes);  // from the first bytes

ImageSize image_size(std::span<const std::uint8_t> bytes);  // from the header

void decode(std::span<const std::uint8_t> bytes, std::size_t channels, Image& into);

// Decodes `crop` at the smallest scale (1, 1/2, 1/4 or 1/8, which JPEG decodes at less cost) that leaves the crop at
// least as large as `least`; at scale 1 if `crop` is smaller than `least`. Returns the crop's position in `into`. May
// skip data outside the crop, so damage there may go unnoticed. REQUIRES: `crop` is within the image.
Window decode_crop(std::span<const std::uint8_t> bytes, std::size_t channels, const Window& crop,
                   const ImageSize& least, Image& into);

// Returns the rows that decode_crop() needs, if it decodes the crop at scale 1 and a GPU may decode the image: baseline
// JPEG (Huffman codes, 8 bits) in a single scan, complete to the end marker, in YCbCr, or gray if `channels` is 1. Else
// nothing.
std::optional<Range> baseline_rows(std::span<const std::uint8_t> bytes, std::size_t channels, const Window& crop,
                                   const ImageSize& least);

}  // namespace annulus
