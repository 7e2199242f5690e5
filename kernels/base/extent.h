#pragma once

#include <cstddef>

namespace annulus {

// The size of a window over images, or the distance between windows, in pixels. A single number means a square.
struct Extent {
  constexpr Extent(std::size_t side) : height(side), width(side) {}
  constexpr Extent(std::size_t rows, std::size_t columns) : height(rows), width(columns) {}

  constexpr std::size_t area() const { return height * width; }
  constexpr bool square() const { return height == width; }
  constexpr bool operator==(const Extent&) const = default;

  std::size_t height, width;
};

// The border around images, in pixels: a single number for all sides, two for rows and columns, or four.
struct Border {
  constexpr Border(std::size_t all) : Border(all, all) {}
  constexpr Border(std::size_t rows, std::size_t columns) : Border(rows, columns, rows, columns) {}
  constexpr Border(std::size_t top_, std::size_t left_, std::size_t bottom_, std::size_t right_)
      : top(top_), left(left_), bottom(bottom_), right(right_) {}

  constexpr std::size_t height() const { return top + bottom; }  // that it adds to the images'
  constexpr std::size_t width() const { return left + right; }
  constexpr bool symmetric() const { return top == bottom && left == right; }
  constexpr bool uniform() const { return symmetric() && top == left; }
  constexpr bool operator==(const Border&) const = default;

  std::size_t top, left, bottom, right;
};

}  // namespace annulus
