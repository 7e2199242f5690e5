#pragma once

#include "src/data/image.h"

namespace annulus {

// Interpolates bilinearly over all input pixels that an output pixel covers, like PIL and torchvision's resize with
// antialias: a triangle filter that extends from the output pixel's centre to each side by an output pixel or an input
// pixel, whichever is larger. Computes in integers, so that every machine gets the same pixels, within 1 from real
// arithmetic.
class Resizer {
 public:
  static constexpr bool takes(std::size_t channels) { return channels == 1 || channels == 3; }

  // Resizes an image's `window` to `size`. Pixels that the window does not touch have no influence. `into` has
  // size.height x size.width x the image's channels. Throws Error for an unsupported number of channels.
  void resize(const Image& from, const Window& window, const ImageSize& size, std::span<std::uint8_t> into);

 private:
  // Along one axis: output i is the sum over k < taps of weights[i * taps + k] x input[begin + first[i] + k].
  struct Axis {
    std::size_t begin = 0, inputs = 0;  // the inputs that contribute
    std::size_t taps = 0;
    std::vector<std::uint32_t> first;
    std::vector<std::int16_t> weights;  // each output's weights sum to 1

    void plan(double from, double length, std::size_t limit, std::size_t outputs);
  };

  void blend_rows(const Image& from, std::size_t output);
  template <std::size_t channels>
  void blend_columns(std::uint8_t* into) const;

  Axis rows_, columns_;
  std::vector<std::int32_t> row_;  // a row after vertical blending, with the window's width
};

}  // namespace annulus
