#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "src/data/image.h"

namespace annulus {

// Draws random numbers from the key alone, made from (seed, epoch, sample): thread, rank and batch position do not
// matter.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(key) {}

  std::uint64_t below(std::uint64_t bound) { return next() % bound; }  // REQUIRES: bound much smaller than 2^64
  double between(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t next() { return mix(key_, count_++); }
  std::uint64_t key_, count_ = 0;
};

// Says which part the network gets from an image.
enum class Crop {
  centre,   // as in evaluation, see centre_crop
  shifted,  // the same size at a random position, see shifted_crop
  resized,  // random size and shape, see random_resized_crop
};

// Says how images are mixed in pairs, see mix_images.
struct Mixing {
  double mixup = 0, cutmix = 0;  // the share's alpha, see mix_images; 0: not mixed in this way
};

// Random changes to an image before the network gets it.
struct Augmentation {
  Crop crop = Crop::centre;
  bool flip = false;                       // left to right, with probability 1/2
  bool alternate = false;                  // flip in every second epoch instead, see flips_in
  std::size_t shift = 0;                   // pixels, see shift_with_reflection; 0: none
  bool jitter = false;                     // vary the colours, see jitter_colours
  std::size_t changes = 0, magnitude = 0;  // see rand_augment; 0 changes: none
  double erase = 0;                        // the probability that erase_randomly is applied
  Mixing mixing{};

  bool mixes() const { return mixing.mixup > 0 || mixing.cutmix > 0; }
  // Whether pixels keep their values, except at edges.
  bool only_moves() const { return crop != Crop::resized && !jitter && changes == 0 && erase == 0 && !mixes(); }
};

// Parses "none", "flip", "crop-flip", "imagenet" or "imagenet-jitter".
Augmentation parse_augmentation(const std::string& name);

// Returns the image's largest central window with `to`'s aspect ratio, both sides divided by `margin`: commonly 256/224
// for uncropped images, whose margins contain little; 1 if images were cropped already.
Window centre_crop(const ImageSize& image, const ImageSize& to, double margin);

// Returns centre_crop's window at a random position (Krizhevsky, Sutskever, Hinton, 2012).
Window shifted_crop(Draws& draws, const ImageSize& image, const ImageSize& to, double margin);

// Draws a window with 0.08 to 1 times the image's area and an aspect ratio from 3:4 to 4:3 (Szegedy et al., "Going
// deeper with convolutions", 2014), as torchvision's RandomResizedCrop does: after ten draws that do not fit, returns
// the largest central window.
Window random_resized_crop(Draws& draws, const ImageSize& image);

// Pixels, which may be negative.
struct Shift {
  std::ptrdiff_t down = 0, right = 0;
};

// Draws a shift by up to `most` pixels in each direction (He et al., "Deep residual learning for image recognition",
// 2015, section 4.2: crop the image padded by 4 pixels).
Shift draw_shift(Draws& draws, std::size_t most);

// Moves the image; pixels beyond an edge are black.
void shift_with_black(const Shift& shift, std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels);

// Moves the image by `down` and `right` pixels. Pixels beyond an edge are reflected at it, and the edge itself is not
// repeated. REQUIRES: the image is larger than the shift in both directions.
void shift_with_reflection(std::ptrdiff_t down, std::ptrdiff_t right, std::span<std::uint8_t> pixels,
                           const ImageSize& size, std::size_t channels, std::vector<std::uint8_t>& scratch);

// Whether a sample is flipped in this epoch: in every second epoch, half of the samples in even ones (Jordan, "94% on
// CIFAR-10 in 3.29 seconds on a single GPU", 2024, arXiv 2404.00498, section 3.6).
bool flips_in(std::uint64_t epoch, std::uint64_t seed, std::size_t sample);

void flip_left_to_right(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels);

// Changes brightness, contrast and saturation, in random order, each by a factor from 0.6 to 1.4, as torchvision's
// ColorJitter(0.4, 0.4, 0.4). Gray images keep their saturation.
void jitter_colours(Draws& draws, std::span<std::uint8_t> pixels, std::size_t channels);

// Fills a random rectangle with a colour, a value per channel (Zhong et al., "Random erasing data augmentation", 2017):
// 0.02 to 0.33 times the area, aspect ratio from 0.3 to 1/0.3, drawn as torchvision's RandomErasing does; does nothing
// after ten draws that do not fit.
void erase_randomly(Draws& draws, std::span<std::uint8_t> pixels, const ImageSize& size,
                    std::span<const std::uint8_t> colour);

}  // namespace annulus
