#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/random.h"
#include "src/data/image.h"

namespace annulus {

// Random numbers that are a function of the key: of (seed, epoch, sample), and so never of the thread, the rank or the
// place in a batch.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(key) {}

  std::uint64_t below(std::uint64_t bound) { return next() % bound; }  // bounds are small beside 2^64
  double between(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t next() { return mix(key_, count_++); }
  std::uint64_t key_, count_ = 0;
};

// Which part of an image the network sees.
enum class Crop {
  centre,   // as in evaluation, see centre_crop
  shifted,  // one of the same size anywhere: see shifted_crop
  resized,  // of random size and shape: see random_resized_crop
};

// What is done to an image before the network sees it.
struct Augmentation {
  Crop crop = Crop::centre;
  bool flip = false;    // left to right, one time in two
  bool jitter = false;  // of the colours, see jitter_colours
};

// "none", "flip", "crop-flip", "imagenet" or "imagenet-jitter".
Augmentation parse_augmentation(const std::string& name);

// The largest window of the shape `to`, in the middle of an image, divided by `margin`: 256/224 as is usual for images
// of any size, where margins hold little; 1 where images have been cut out already.
Window centre_crop(const ImageSize& image, const ImageSize& to, double margin);

// The centre's window, anywhere in the image (Krizhevsky, Sutskever, Hinton, 2012).
Window shifted_crop(Draws& draws, const ImageSize& image, const ImageSize& to, double margin);

// A share of 0.08 to 1 of the image, of a shape from 3:4 to 4:3, anywhere in it (Szegedy et al., "Going deeper with
// convolutions", 2014), as torchvision's RandomResizedCrop draws it: after ten that do not fit, the largest in the
// middle.
Window random_resized_crop(Draws& draws, const ImageSize& image);

// Moves all pixels by up to 4 in each direction: black comes in at the sides (He et al., "Deep residual learning for
// image recognition", 2015, section 4.2: a crop of the image padded by 4 pixels).
void shift_randomly(Draws& draws, std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels);

void flip_left_to_right(std::span<std::uint8_t> pixels, const ImageSize& size, std::size_t channels);

// Brightness, contrast and saturation, in random order, each by a factor of 0.6 to 1.4, as torchvision's
// ColorJitter(0.4, 0.4, 0.4). Saturation is of colours only.
void jitter_colours(Draws& draws, std::span<std::uint8_t> pixels, std::size_t channels);

}  // namespace annulus
