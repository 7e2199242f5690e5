#pragma once

#include "src/data/image.h"

namespace annulus::test {

using Bytes = std::vector<std::uint8_t>;

// An image of smooth shapes in which all rows, columns and channels differ.
Image picture(const ImageSize& size, std::size_t channels);

struct JpegForm {
  int quality = 95;
  bool progressive = false;
  bool halved_colours = true;  // 4:2:0
  bool adobe_marker = true;    // CMYK, for four channels
  bool arithmetic = false;     // codes instead of Huffman's
};

// An image of 1, 3 or 4 channels as a JPEG file.
Bytes jpeg_of(const Image& image, const JpegForm& form = {});

// A PNG file of rows in libpng's form: `type` is PNG_COLOR_TYPE_*; `palette` (red, green, blue, ...) is for the type
// that has one.
Bytes png_of(const ImageSize& size, int type, int bits, const Bytes& rows, bool interlaced = false,
             const Bytes& palette = {});
Bytes png_of(const Image& image);  // 1 or 3 channels

}  // namespace annulus::test
