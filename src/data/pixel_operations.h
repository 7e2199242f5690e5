#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/data/image.h"

namespace annulus {

// Operations on the pixels of an image, height x width x channels, of 1 or 3 channels unless noted. They are those of
// Pillow, in integers, so that every machine computes the same pixels.

// A colour factor of 1, and the conversion of a factor to such a fixed-point number.
constexpr int kFactorBits = 12;
constexpr std::int32_t kFactorOne = 1 << kFactorBits;
std::int32_t fixed_point(double factor);

// Blend the image with black, with its mean gray, with its own gray (3 channels only), and with itself smoothed: a
// factor of 1 leaves the image unchanged, a factor of 0 leaves the other one only.
void adjust_brightness(std::span<std::uint8_t> pixels, std::int32_t factor);
void adjust_contrast(std::span<std::uint8_t> pixels, std::size_t channels, std::int32_t factor);
void adjust_saturation(std::span<std::uint8_t> pixels, std::int32_t factor);
void adjust_sharpness(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels, std::int32_t factor,
                      std::vector<std::uint8_t>& scratch);

void posterize(std::span<std::uint8_t> pixels, int bits);                       // keeps the highest bits
void solarize(std::span<std::uint8_t> pixels, int threshold);                   // inverts values from this one on
void stretch_contrast(std::span<std::uint8_t> pixels, std::size_t channels);    // of each channel, to 0..255
void equalize_histogram(std::span<std::uint8_t> pixels, std::size_t channels);  // of each channel

// A map from a pixel's position to the position in the original image from which its value is taken: x to
// xx * x + xy * y + x0, and y likewise. The centre of the first pixel is at (0.5, 0.5).
struct Affine {
  double xx = 1, xy = 0, x0 = 0;
  double yx = 0, yy = 1, y0 = 0;
};

Affine rotation(double degrees, const ImageSize& size);  // counterclockwise, about the centre

// Takes each value from the nearest pixel, and black outside of the image. Any number of channels.
void transform(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels, const Affine& map,
               std::vector<std::uint8_t>& scratch);

}  // namespace annulus
