#include "src/data/mix_images.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace annulus {
namespace {

constexpr ImageSize kSize{20, 30};
constexpr std::size_t kPixels = kSize.height * kSize.width;
constexpr int kCount = 20000;

// The share of the first image, which is `own` everywhere, after mixing it with one that is `other` everywhere.
double mix(Draws& draws, const Mixing& mixing, std::vector<std::uint8_t>& pixels, std::uint8_t own,
           std::uint8_t other) {
  pixels.assign(kPixels, own);
  const std::vector<std::uint8_t> others(kPixels, other);
  return static_cast<double>(mix_images(draws, mixing, pixels, others, kSize, 1)) / MixedLabel::kWhole;
}

}  // namespace

TEST_CASE("mixup takes the weighted mean of two images, with shares of a beta distribution", "[augment]") {
  const double alpha = GENERATE(0.2, 0.5, 1.0);
  CAPTURE(alpha);
  double sum = 0, squares = 0;
  std::vector<std::uint8_t> pixels;
  for (std::uint64_t key = 0; key < kCount; ++key) {
    Draws draws(key);
    const double share = mix(draws, {.mixup = alpha}, pixels, 200, 40);
    REQUIRE((share >= 0 && share <= 1));
    REQUIRE(pixels.front() == std::lround(40 + 160 * share));
    REQUIRE(std::ranges::count(pixels, pixels.front()) == kPixels);
    sum += share;
    squares += share * share;
  }
  CHECK(sum / kCount == Approx(0.5).margin(0.01));
  CHECK(squares / kCount - 0.25 == Approx(1 / (4 * (2 * alpha + 1))).margin(0.005));
}

TEST_CASE("CutMix replaces a rectangle, and its share is that of the pixels", "[augment]") {
  double sum = 0;
  std::vector<std::uint8_t> pixels;
  std::vector<int> replaced(kPixels);
  for (std::uint64_t key = 0; key < kCount; ++key) {
    Draws draws(key);
    const double share = mix(draws, {.cutmix = 1}, pixels, 200, 40);
    REQUIRE(share == Approx(static_cast<double>(std::ranges::count(pixels, 200)) / kPixels).margin(1e-5));
    std::size_t top = kSize.height, bottom = 0, left = kSize.width, right = 0;
    for (std::size_t i = 0; i < kPixels; ++i) {
      if (pixels[i] == 200) continue;
      ++replaced[i];
      top = std::min(top, i / kSize.width);
      bottom = std::max(bottom, i / kSize.width + 1);
      left = std::min(left, i % kSize.width);
      right = std::max(right, i % kSize.width + 1);
    }
    if (share < 1) REQUIRE(std::ranges::count(pixels, 40) == static_cast<int>((bottom - top) * (right - left)));
    sum += share;
  }
  // The mean of torchvision's CutMix for images of this size.
  CHECK(sum / kCount == Approx(0.7098).margin(0.005));
  CHECK(*std::ranges::min_element(replaced) > 0);
}

TEST_CASE("mixup and CutMix are used equally often if both are given", "[augment]") {
  std::vector<std::uint8_t> pixels;
  int cut = 0;
  for (std::uint64_t key = 0; key < kCount; ++key) {
    Draws draws(key), same(key);
    const double share = mix(draws, {.mixup = 1, .cutmix = 1}, pixels, 200, 40);
    cut += std::ranges::count(pixels, 200) + std::ranges::count(pixels, 40) == kPixels;
    std::vector<std::uint8_t> again;
    REQUIRE(mix(same, {.mixup = 1, .cutmix = 1}, again, 200, 40) == share);
    REQUIRE(again == pixels);
  }
  CHECK(static_cast<double>(cut) / kCount == Approx(0.5).margin(0.02));
}

TEST_CASE("the label with the larger share comes first", "[augment]") {
  constexpr std::int32_t kWhole = MixedLabel::kWhole;
  CHECK(mixed_label(3, 7, kWhole) == MixedLabel{3, 7, kWhole});
  CHECK(mixed_label(3, 7, kWhole / 2) == MixedLabel{3, 7, kWhole / 2});
  CHECK(mixed_label(3, 7, kWhole / 4) == MixedLabel{7, 3, kWhole / 4 * 3});
}

}  // namespace annulus
