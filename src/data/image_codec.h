#pragma once

#include <optional>

#include "kernels/base/split.h"
#include "src/data/image.h"

namespace annulus {

// Decodes JPEG and PNG files in memory, with libjpeg-turbo and libpng. The output has 8 bits and 1 or 3 channels: gray
// is expanded to colours, colours are reduced to gray (0.299 R + 0.587 G + 0.114 B), 16 bits are rounded to 8, palettes
// are looked up, and transparency and orientation are ignored, all as in PIL's convert("RGB") and convert("L").
//
// Throws Error, a line that describes the problem, if the image is of an unknown kind, damaged, truncated, or larger
// than kMostPixels. libjpeg continues with a warning at damaged data; here that is an Error as well.

enum class Encoding { unknown, jpeg, png };

constexpr std::size_t kMostPixels = 100'000'000;

Encoding encoding_of(std::span<const std::uint8_t> bytes);  // from the first bytes

ImageSize image_size(std::span<const std::uint8_t> bytes);  // from the header

void decode(std::span<const std::uint8_t> bytes, std::size_t channels, Image& into);

// Decodes the part of the image in `crop`, which must be within the image, on the smallest scale (1, 1/2, 1/4, 1/8:
// those that JPEG decodes at less cost) at which the crop is at least as large as `least`; on scale 1 if it is smaller
// than that. Returns the crop's position in `into`. Data outside the crop may be skipped, so damage there may go
// unnoticed.
Window decode_crop(std::span<const std::uint8_t> bytes, std::size_t channels, const Window& crop,
                   const ImageSize& least, Image& into);

// Returns the rows that decode_crop() needs, if it decodes the crop on scale 1 and the image is one that a GPU may
// decode: baseline JPEG (Huffman codes, 8 bits) in one scan, complete to its end marker, in YCbCr, or gray if
// `channels` is 1. Else nothing.
std::optional<Range> baseline_rows(std::span<const std::uint8_t> bytes, std::size_t channels, const Window& crop,
                                   const ImageSize& least);

}  // namespace annulus
