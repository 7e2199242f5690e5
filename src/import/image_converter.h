#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "src/data/image.h"
#include "src/data/resize.h"
#include "src/import/source.h"

namespace annulus {

// Says how a data file stores images.
struct Storage {
  bool encoded = false;           // JPEG and PNG as in the source, otherwise pixels
  std::optional<ImageSize> size;  // the pixels'; none for encoded images, which may have any size
  std::size_t channels = 0;       // in the pixels or the decoded images
};

// Sums the pixels in many images, in integers, so that the order of addition does not matter. Overflows beyond 2.8e14
// pixels, a thousand times ImageNet's.
struct PixelSums {
  static constexpr std::size_t kMostChannels = 3;

  std::uint64_t count = 0;  // pixels
  std::array<std::uint64_t, kMostChannels> sums{}, squares{};

  void add(std::span<const std::uint8_t> pixels, std::size_t channels);
  void add(const PixelSums& other);
};

// Bounds images' heights and widths.
struct SizeRange {
  ImageSize smallest{SIZE_MAX, SIZE_MAX}, largest{0, 0};

  void add(const ImageSize& size);
  void add(const SizeRange& other);
};

struct ImageStatistics {
  PixelSums pixels;
  SizeRange sizes;
};

// Converts a source's encoded images to the form that a data file stores.
class ImageConverter {
 public:
  explicit ImageConverter(const Storage& storage) : storage_(storage) {}

  // Returns the bytes to store, valid until the next call. Always decodes the image. Throws Error with a bad image's
  // problem, and does not count that image.
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
