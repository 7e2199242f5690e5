#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/data/image.h"

namespace annulus {

// How an evaluation looks at an image.
struct View {
  float weight = 1;          // in the mean logits
  bool mirrored = false;     // left to right
  std::ptrdiff_t shift = 0;  // down and to the right, in pixels, see shift_with_reflection()
};

// Returns the views with a name; their weights add up to 1 (Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU",
// 2024, arXiv 2404.00498, section 3.5):
//
//   one           the image
//   mirror        and its mirror image
//   mirror-shift  these with half the weight, and both moved by a pixel down and right, and up and left
//
// Throws Error if there is no such name.
std::vector<View> parse_views(const std::string& name);

// Turns an image into this view. REQUIRES: the image is larger than the shift.
void show(const View& view, std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels,
          std::vector<std::uint8_t>& scratch);

}  // namespace annulus
