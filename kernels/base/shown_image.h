#pragma once

#include <cstdint>

namespace annulus {

// How a network gets a stored image: moved, then mirrored.
struct ShownImage {
  std::uint32_t number = 0;          // in the set
  std::int16_t down = 0, right = 0;  // pixels
  std::uint16_t reflected = 0;       // pixels beyond an edge are reflected at it, without the edge itself; else black
  std::uint16_t mirrored = 0;        // left to right

  bool operator==(const ShownImage&) const = default;
};

// Of each image in a set: height x width x channels bytes.
struct PixelShape {
  std::uint32_t height = 0, width = 0, channels = 0;

  std::uint32_t pixels() const { return height * width; }
  std::uint32_t bytes() const { return pixels() * channels; }
};

}  // namespace annulus
