#pragma once

#include "src/data/image.h"

namespace annulus {

// Bilinear interpolation that looks at all pixels which an output pixel covers, as PIL and torchvision's resize with
// antialias do: a triangle as wide as an output pixel, and at least as an input pixel, on each side of its centre. In
// integers, so that every machine finds the same pixels: within 1 of what real numbers give.
class Resizer {
 public:
  static constexpr bool takes(std::size_t channels) { return channels == 1 || channels == 3; }

  // Makes `window` of an image the whole of another, of the size `size`. Pixels beyond those that the window touches
  // take no part. `into` has size.height x size.width x the image's channels; of channels that it does not take, Error.
  void resize(const Image& from, const Window& window, const ImageSize& size, std::span<std::uint8_t> into);

 private:
  // Along one axis: output i is the sum over k < taps of weights[i * taps + k] x input[begin + first[i] + k].
  struct Axis {
    std::size_t begin = 0, inputs = 0;  // those that take part
    std::size_t taps = 0;
    std::vector<std::uint32_t> first;
    std::vector<std::int16_t> weights;  // an output's sum to 1

    void plan(double from, double length, std::size_t limit, std::size_t outputs);
  };

  void blend_rows(const Image& from, std::size_t output);
  template <std::size_t channels>
  void blend_columns(std::uint8_t* into) const;

  Axis rows_, columns_;
  std::vector<std::int32_t> row_;  // between the two: of the output's height and the window's width
};

}  // namespace annulus
