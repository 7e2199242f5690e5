#pragma once

#include "src/data/image.h"

namespace annulus {

// Bilinear interpolation over all input pixels that an output pixel covers, as in PIL and in torchvision's resize with
// antialias: a triangle filter that extends to each side of the output pixel's centre by the size of an output pixel,
// or of an input pixel if that is larger. In integer arithmetic, so that every machine computes the same pixels; they
// are within 1 of those in real arithmetic.
class Resizer {
 public:
  static constexpr bool takes(std::size_t channels) { return channels == 1 || channels == 3; }

  // Resizes `window` of an image to `size`. Pixels beyond those that the window touches have no influence. `into` has
  // size.height x size.width x the image's channels. Throws Error for an unsupported number of channels.
  void resize(const Image& from, const Window& window, const ImageSize& size, std::span<std::uint8_t> into);

 private:
  // Along one axis: output i is the sum over k < taps of weights[i * taps + k] x input[begin + first[i] + k].
  struct Axis {
    std::size_t begin = 0, inputs = 0;  // the inputs that contribute
    std::size_t taps = 0;
    std::vector<std::uint32_t> first;
    std::vector<std::int16_t> weights;  // the weights of an output sum to 1

    void plan(double from, double length, std::size_t limit, std::size_t outputs);
  };

  void blend_rows(const Image& from, std::size_t output);
  template <std::size_t channels>
  void blend_columns(std::uint8_t* into) const;

  Axis rows_, columns_;
  std::vector<std::int32_t> row_;  // a row after vertical blending, with the window's width
};

}  // namespace annulus
