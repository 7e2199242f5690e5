#pragma once

#include <cstddef>

namespace annulus {

// The size of a window over images or of the border around them, in pixels. A single number means a square.
struct Extent {
  constexpr Extent(std::size_t side) : height(side), width(side) {}
  constexpr Extent(std::size_t rows, std::size_t columns) : height(rows), width(columns) {}

  constexpr std::size_t area() const { return height * width; }
  constexpr bool square() const { return height == width; }
  constexpr bool operator==(const Extent&) const = default;

  std::size_t height, width;
};

}  // namespace annulus
