#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "src/data/image.h"
#include "src/data/resize.h"
#include "src/import/source.h"

namespace annulus {

// How a data file stores its images.
struct Storage {
  bool encoded = false;           // JPEG and PNG as in the source, otherwise pixels
  std::optional<ImageSize> size;  // of the pixels; none for encoded images, which may have any size
  std::size_t channels = 0;       // of the pixels or of the decoded images
};

// Sums over the pixels of many images. They are integers, so that the order of addition does not matter. They overflow
// beyond 2.8e14 pixels, a thousand times ImageNet's.
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

// Converts a source's images, which are encoded, to the form in which a data file stores them.
class ImageConverter {
 public:
  explicit ImageConverter(const Storage& storage) : storage_(storage) {}

  // Returns the bytes to store, valid until the next call. Always decodes the image. Throws Error with the problem of a
  // bad image, which is then not counted.
  std::span<const std::uint8_t> convert(std::span<const std::uint8_t> bytes);

  const ImageStatistics& statistics() const { return statistics_; }

 private:
  void fit();

  const Storage storage_;
  ImageStatistics statistics_;
  Resizer resizer_;
  Image image_, fitted_;
};

}  // namespace annulus
