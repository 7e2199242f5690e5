#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace annulus {

struct ImageSize {
  std::size_t height = 0, width = 0;

  bool operator==(const ImageSize&) const = default;
};

// Delimits a part of an image, in pixels; edges may be fractional.
struct Window {
  double top = 0, left = 0, height = 0, width = 0;
};

// Holds pixels, height x width x channels. Reuses memory; allocates only if an image is larger than all before.
struct Image {
  ImageSize size;
  std::size_t channels = 0;
  std::vector<std::uint8_t> pixels;

  void reshape(const ImageSize& new_size, std::size_t new_channels) {
    size = new_size;
    channels = new_channels;
    pixels.resize(size.height * size.width * channels);
  }
  std::span<std::uint8_t> row(std::size_t y) {
    return std::span(pixels).subspan(y * size.width * channels, size.width * channels);
  }
  Window whole() const { return {0, 0, static_cast<double>(size.height), static_cast<double>(size.width)}; }
};

}  // namespace annulus
