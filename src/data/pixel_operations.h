#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/data/image.h"

namespace annulus {

// Pillow's operations on an image's pixels, height x width x channels, with 1 or 3 channels unless noted; in integers,
// so that every machine computes the same pixels.

// The colour factor 1 in fixed point, and the conversion from a factor.
constexpr int kFactorBits = 12;
constexpr std::int32_t kFactorOne = 1 << kFactorBits;
std::int32_t fixed_point(double factor);

// Blend the image with black, with the image's mean gray, with each pixel's gray (3 channels only), and with the
// smoothed image: factor 1 leaves the image unchanged, factor 0 leaves only the blended-in image.
void adjust_brightness(std::span<std::uint8_t> pixels, std::int32_t factor);
void adjust_contrast(std::span<std::uint8_t> pixels, std::size_t channels, std::int32_t factor);
void adjust_saturation(std::span<std::uint8_t> pixels, std::int32_t factor);
void adjust_sharpness(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels, std::int32_t factor,
                      std::vector<std::uint8_t>& scratch);

void posterize(std::span<std::uint8_t> pixels, int bits);                       // keeps the highest bits
void solarize(std::span<std::uint8_t> pixels, int threshold);                   // inverts values from `threshold` on
void stretch_contrast(std::span<std::uint8_t> pixels, std::size_t channels);    // per channel, to 0..255
void equalize_histogram(std::span<std::uint8_t> pixels, std::size_t channels);  // per channel

// Maps a pixel's position to the source position in the original image: x to xx * x + xy * y + x0, y to yx * x + yy * y
// + y0. The first pixel's centre is at (0.5, 0.5).
struct Affine {
  double xx = 1, xy = 0, x0 = 0;
  double yx = 0, yy = 1, y0 = 0;
};

Affine rotation(double degrees, const ImageSize& size);  // counterclockwise, about the centre

// Takes each value from the nearest pixel, and black outside the image. Takes any number of channels.
void transform(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels, const Affine& map,
               std::vector<std::uint8_t>& scratch);

}  // namespace annulus
