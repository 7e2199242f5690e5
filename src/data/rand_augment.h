#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/data/augment.h"

namespace annulus {

// RandAugment (Cubuk, Zoph, Shlens, Le, "RandAugment: practical automated data augmentation with a reduced search
// space", 2019), with the operations and magnitudes of torchvision's.

constexpr int kMostMagnitude = 30;

enum class RandomChange {
  identity,
  shear_x,  // in this and the next eight, the magnitude's sign is random
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  saturation,
  contrast,
  sharpness,
  posterize,
  solarize,
  stretch_contrast,
  equalize
};
constexpr std::size_t kRandomChanges = 14;

// Applies a change to an image with 1 or 3 channels. `magnitude`: -30 to 30.
void apply(RandomChange change, int magnitude, std::span<std::uint8_t> pixels, const ImageSize& size,
           std::size_t channels, std::vector<std::uint8_t>& scratch);

// Draws and applies `changes` random changes.
void rand_augment(Draws& draws, std::size_t changes, int magnitude, std::span<std::uint8_t> pixels,
                  const ImageSize& size, std::size_t channels, std::vector<std::uint8_t>& scratch);

}  // namespace annulus
