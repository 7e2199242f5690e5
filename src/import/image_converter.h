#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "src/data/image.h"
#include "src/data/resize.h"
#include "src/import/source.h"

namespace annulus {

// How a data file keeps its images.
struct Storage {
  bool encoded = false;           // as they came, else as pixels
  std::optional<ImageSize> size;  // of the pixels; none where the images are encoded, of any size
  std::size_t channels = 0;       // of the pixels, also of those that encoded images are decoded to
};

// What many images' pixels come to: whole numbers, so that the order of adding does not matter. They overflow beyond
// 2.8e14 pixels, a thousand times ImageNet's.
struct PixelSums {
  static constexpr std::size_t kMostChannels = 3;

  std::uint64_t count = 0;  // pixels
  std::array<std::uint64_t, kMostChannels> sums{}, squares{};

  void add(std::span<const std::uint8_t> pixels, std::size_t channels);
  void add(const PixelSums& other);
};

// The heights and widths of images.
struct SizeRange {
  ImageSize smallest{SIZE_MAX, SIZE_MAX}, largest{0, 0};

  void add(const ImageSize& size);
  void add(const SizeRange& other);
};

struct ImageStatistics {
  PixelSums pixels;
  SizeRange sizes;
};

// Makes of a source's images what a data file stores of them.
class ImageConverter {
 public:
  // `pixels`: what the source's images are; none: encoded.
  ImageConverter(const Storage& storage, const std::optional<PixelShape>& pixels);

  // What is to be stored, valid until the next call. Decodes the image in any case. Throws Error that says what is
  // wrong with it; it is then not counted.
  std::span<const std::uint8_t> convert(std::span<const std::uint8_t> bytes);

  const ImageStatistics& statistics() const { return statistics_; }

 private:
  void take_in(std::span<const std::uint8_t> bytes);
  void fit();

  const Storage storage_;
  const std::optional<PixelShape> pixels_;
  ImageStatistics statistics_;
  Resizer resizer_;
  Image image_, fitted_;
};

}  // namespace annulus
