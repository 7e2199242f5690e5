#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace annulus {

// A JPEG image to decode, and the rows that are needed.
struct JpegJob {
  std::span<const std::uint8_t> file;
  std::size_t height = 0, width = 0;  // the whole image's
  std::size_t first_row = 0;
  std::span<std::uint8_t> pixels;  // whole rows in RGB or gray, from first_row on
  bool decoded = false;
};

// Decodes JPEG images on a device. For the thread that made it.
class JpegDecoder {
 public:
  virtual ~JpegDecoder() = default;

  // Decodes the images that it can, up to rounding as libjpeg does, and marks them. All other images, including damaged
  // ones, are left to the caller. Which images are decoded, and their pixels, do not depend on the other images.
  virtual void decode(std::span<JpegJob> jobs) = 0;
};

// Makes a decoder for the calling thread. Thread-safe. Throws Error if the device cannot decode.
using MakeJpegDecoder = std::function<std::unique_ptr<JpegDecoder>()>;

}  // namespace annulus
