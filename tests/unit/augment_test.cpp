#include "src/data/augment.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "src/data/rand_augment.h"
#include "tests/unit/error_text.h"
#include "tests/unit/image_files.h"

namespace annulus {
namespace {

bool within(const Window& window, const ImageSize& image) {
  return window.top >= 0 && window.left >= 0 && window.height > 0 && window.width > 0 &&
         window.top + window.height <= static_cast<double>(image.height) &&
         window.left + window.width <= static_cast<double>(image.width);
}

}  // namespace

TEST_CASE("random draws depend only on the key", "[augment]") {
  Draws a(1), again(1), b(2);
  const double first = a.between(0, 1);
  CHECK(first == again.between(0, 1));
  CHECK(first != b.between(0, 1));
  CHECK(first != a.between(0, 1));
}

TEST_CASE("random crops have the expected areas and aspect ratios", "[augment]") {
  const ImageSize image{375, 500};
  constexpr int kCount = 20000;
  double share = 0, shape = 0, left = 0;
  int small = 0;
  for (int i = 0; i < kCount; ++i) {
    Draws draws(static_cast<std::uint64_t>(i));
    const Window crop = random_resized_crop(draws, image);
    REQUIRE(within(crop, image));
    REQUIRE(crop.height == std::floor(crop.height));
    const double area = crop.height * crop.width / (375.0 * 500);
    REQUIRE(area > 0.079);
    REQUIRE(crop.width / crop.height == Approx(1).epsilon(0.35));
    share += area;
    small += area < 0.54;
    shape += std::log(crop.width / crop.height);
    left += crop.left / std::max(1.0, 500 - crop.width);
  }
  // Crops that do not fit are redrawn, which happens more often to large and narrow ones. These are the means of
  // torchvision's draws, which have the same definition.
  CHECK(share / kCount == Approx(0.4348).margin(0.006));
  CHECK(shape / kCount == Approx(0.0315).margin(0.006));
  CHECK(left / kCount == Approx(0.5).margin(0.01));
  CHECK(static_cast<double>(small) / kCount == Approx(0.671).margin(0.012));
}

TEST_CASE("random crops of too narrow images fall back to the largest centre crop", "[augment]") {
  Draws draws(1);
  const Window crop = random_resized_crop(draws, {10, 1000});
  CHECK(crop.height == 10);
  CHECK(crop.width == 13);
  CHECK(crop.left == 493);
  const Window tall = random_resized_crop(draws, {1000, 9});
  CHECK(tall.width == 9);
  CHECK(tall.height == 12);
  CHECK(within(random_resized_crop(draws, {1, 1}), {1, 1}));
}

TEST_CASE("centre crops have the requested shape and margin", "[augment]") {
  const Window square = centre_crop({300, 500}, {224, 224}, 1);
  CHECK((square.top == 0 && square.left == 100 && square.height == 300 && square.width == 300));
  const Window inner = centre_crop({256, 512}, {224, 224}, 256.0 / 224);
  CHECK(inner.height == Approx(224));
  CHECK(inner.top == Approx(16));
  CHECK(inner.left == Approx(144));
  const Window whole = centre_crop({28, 20}, {28, 20}, 1);
  CHECK((whole.top == 0 && whole.left == 0 && whole.height == 28 && whole.width == 20));
}

TEST_CASE("shifted crops have a constant size and any position", "[augment]") {
  double lowest = 1000, highest = 0;
  for (std::uint64_t key = 0; key < 1000; ++key) {
    Draws draws(key);
    const Window crop = shifted_crop(draws, {256, 300}, {224, 224}, 256.0 / 224);
    REQUIRE(within(crop, {256, 300}));
    CHECK(crop.height == Approx(224));
    lowest = std::min(lowest, crop.left);
    highest = std::max(highest, crop.left);
  }
  CHECK(lowest < 2);
  CHECK(highest > 74);
}

TEST_CASE("pixels are shifted by up to four, and black fills the border", "[augment]") {
  std::set<std::pair<int, int>> moves;
  for (const std::size_t channels : {1u, 3u}) {
    for (const ImageSize size : {ImageSize{9, 12}, {1, 1}, {3, 20}}) {
      const Image image = test::picture(size, channels);
      for (std::uint64_t key = 0; key < 500; ++key) {
        Draws draws(key), same(key);
        const int down = static_cast<int>(same.below(9)) - 4, right = static_cast<int>(same.below(9)) - 4;
        moves.insert({down, right});
        std::vector<std::uint8_t> pixels = image.pixels;
        shift_with_black(draw_shift(draws, 4), pixels, size, channels);
        bool good = true;
        for (int y = 0; y < static_cast<int>(size.height); ++y)
          for (int x = 0; x < static_cast<int>(size.width); ++x)
            for (std::size_t c = 0; c < channels; ++c) {
              const int from_y = y - down, from_x = x - right, width = static_cast<int>(size.width);
              const bool inside =
                  from_y >= 0 && from_y < static_cast<int>(size.height) && from_x >= 0 && from_x < width;
              const auto at = [&](int row, int column) {
                return static_cast<std::size_t>(row * width + column) * channels + c;
              };
              good &= pixels[at(y, x)] == (inside ? image.pixels[at(from_y, from_x)] : 0);
            }
        REQUIRE(good);
      }
    }
  }
  CHECK(moves.size() == 81);
}

TEST_CASE("pixels beyond an edge are reflected, without the edge", "[augment]") {
  std::vector<std::uint8_t> scratch;
  const auto shifted = [&](std::ptrdiff_t down, std::ptrdiff_t right, std::size_t channels, const ImageSize& size,
                           std::vector<std::uint8_t> pixels) {
    shift_with_reflection(down, right, pixels, size, channels, scratch);
    return pixels;
  };
  using Pixels = std::vector<std::uint8_t>;
  CHECK(shifted(0, 2, 1, {1, 5}, {1, 2, 3, 4, 5}) == Pixels{3, 2, 1, 2, 3});
  CHECK(shifted(0, -2, 1, {1, 5}, {1, 2, 3, 4, 5}) == Pixels{3, 4, 5, 4, 3});
  CHECK(shifted(1, 0, 1, {3, 2}, {1, 2, 3, 4, 5, 6}) == Pixels{3, 4, 1, 2, 3, 4});
  CHECK(shifted(-1, 1, 2, {2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}) == Pixels{7, 8, 5, 6, 3, 4, 1, 2});
  const Image image = test::picture({9, 12}, 3);
  CHECK(shifted(0, 0, 3, image.size, image.pixels) == image.pixels);
}

TEST_CASE("alternating flips turn each sample in every second epoch, and half of them in each", "[augment]") {
  std::size_t flipped = 0;
  for (std::size_t sample = 0; sample < 10000; ++sample) {
    CHECK(flips_in(0, 5, sample) != flips_in(1, 5, sample));
    CHECK(flips_in(0, 5, sample) == flips_in(2, 5, sample));
    flipped += flips_in(0, 5, sample);
  }
  CHECK(static_cast<double>(flipped) == Approx(5000).margin(200));
}

TEST_CASE("flipping reverses each row, and flipping twice is the identity", "[augment]") {
  std::vector<std::uint8_t> pixels{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
  const std::vector<std::uint8_t> before = pixels;
  flip_left_to_right(pixels, {2, 3}, 3);
  CHECK(pixels == std::vector<std::uint8_t>{7, 8, 9, 4, 5, 6, 1, 2, 3, 16, 17, 18, 13, 14, 15, 10, 11, 12});
  flip_left_to_right(pixels, {2, 3}, 3);
  CHECK(pixels == before);
  flip_left_to_right(pixels, {9, 2}, 1);
  CHECK(pixels == std::vector<std::uint8_t>{2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15, 18, 17});
}

TEST_CASE("colour jitter uses factors from 0.6 to 1.4", "[augment]") {
  double lowest = 255, highest = 0;
  for (std::uint64_t key = 0; key < 2000; ++key) {
    // In a uniform gray image contrast and saturation change nothing.
    std::vector<std::uint8_t> pixels(12, 100);
    Draws draws(key), same(key);
    jitter_colours(draws, pixels, 3);
    CHECK(std::ranges::count(pixels, pixels[0]) == 12);
    lowest = std::min<double>(lowest, pixels[0]);
    highest = std::max<double>(highest, pixels[0]);
    std::vector<std::uint8_t> again(12, 100);
    jitter_colours(same, again, 3);
    CHECK(again == pixels);
  }
  CHECK(lowest == Approx(60).margin(1));
  CHECK(highest == Approx(140).margin(1));
  Draws draws(5);
  std::vector<std::uint8_t> gray{0, 50, 100, 255}, colours{200, 100, 50, 10, 20, 250};
  const auto before = colours;
  jitter_colours(draws, gray, 1);
  jitter_colours(draws, colours, 3);
  CHECK(std::ranges::is_sorted(gray));
  CHECK(colours != before);
  CHECK((colours[0] > colours[1] && colours[1] > colours[2] && colours[5] > colours[3]));
}

TEST_CASE("a rectangle of random size and place is erased", "[augment]") {
  constexpr ImageSize size{20, 30};
  const std::vector<std::uint8_t> colour{1, 2, 3};
  double share = 0, ratio = 0;
  std::set<std::size_t> tops;
  constexpr int kCount = 4000;
  int erased = 0;
  for (std::uint64_t key = 0; key < kCount; ++key) {
    std::vector<std::uint8_t> pixels(size.height * size.width * 3, 200);
    Draws draws(key);
    erase_randomly(draws, pixels, size, colour);
    std::size_t top = size.height, bottom = 0, left = size.width, right = 0, count = 0;
    for (std::size_t y = 0; y < size.height; ++y)
      for (std::size_t x = 0; x < size.width; ++x) {
        const auto pixel = std::span(pixels).subspan((y * size.width + x) * 3, 3);
        if (pixel[0] == 200) continue;
        REQUIRE(std::ranges::equal(pixel, colour));
        ++count;
        top = std::min(top, y);
        left = std::min(left, x);
        bottom = std::max(bottom, y + 1);
        right = std::max(right, x + 1);
      }
    if (count == 0) continue;
    REQUIRE(count == (bottom - top) * (right - left));
    ++erased;
    tops.insert(top);
    share += static_cast<double>(count) / (20 * 30);
    ratio += std::log(static_cast<double>(bottom - top) / static_cast<double>(right - left));
  }
  // The means of torchvision's RandomErasing.get_params for images of this size.
  CHECK(erased == kCount);
  CHECK(share / erased == Approx(0.1687).margin(0.005));
  CHECK(ratio / erased == Approx(-0.0601).margin(0.04));
  CHECK(tops.size() > 16);
}

TEST_CASE("the changes of RandAugment are torchvision's", "[augment]") {
  Image image;
  image.reshape({9, 12}, 3);
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<std::uint8_t>(20 + (i * i / 7 + 31 * i) % 211);
  // Sums of (1 + position) x value, of torchvision 0.29 with PIL. Colours are rounded there otherwise.
  struct Case {
    RandomChange change;
    int magnitude;
    std::int64_t sum, tolerance;
  };
  using enum RandomChange;
  const std::int64_t one_each = static_cast<std::int64_t>(image.pixels.size() * (image.pixels.size() + 1) / 2);
  const std::vector<Case> cases{{identity, 0, 6586867, 0},
                                {shear_x, 20, 5993917, 0},
                                {shear_x, -9, 6275223, 0},
                                {shear_y, 20, 4989901, 0},
                                {shear_y, -9, 6559661, 0},
                                {translate_x, 20, 5113212, 0},
                                {translate_x, -9, 6039601, 0},
                                {translate_y, 20, 6290902, 0},
                                {translate_y, -9, 5201711, 0},
                                {rotate, 20, 5713132, 0},
                                {rotate, -9, 6265317, 0},
                                {brightness, 20, 9465460, one_each},
                                {brightness, -9, 4783422, one_each},
                                {saturation, 20, 6615010, one_each},
                                {saturation, -9, 6538567, one_each},
                                {contrast, 20, 6639876, one_each},
                                {contrast, -9, 6530897, one_each},
                                {sharpness, 20, 6579606, one_each},
                                {sharpness, -9, 6563185, one_each},
                                {posterize, 9, 6559306, 0},
                                {solarize, 9, 4511213, 0},
                                {stretch_contrast, 0, 6757127, one_each},
                                {equalize, 0, 6586867, 0}};
  for (const Case& one : cases) {
    CAPTURE(static_cast<int>(one.change), one.magnitude);
    std::vector<std::uint8_t> pixels = image.pixels, scratch;
    apply(one.change, one.magnitude, pixels, image.size, 3, scratch);
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < pixels.size(); ++i) sum += static_cast<std::int64_t>((i + 1) * pixels[i]);
    CHECK(std::abs(sum - one.sum) <= one.tolerance);
  }
}

TEST_CASE("RandAugment draws all changes, of both signs", "[augment]") {
  const Image image = test::picture({16, 16}, 3);
  std::set<std::vector<std::uint8_t>> results;
  for (std::uint64_t key = 0; key < 1000; ++key) {
    std::vector<std::uint8_t> pixels = image.pixels, again = image.pixels, scratch;
    Draws draws(key), same(key);
    rand_augment(draws, 1, 20, pixels, image.size, 3, scratch);
    rand_augment(same, 1, 20, again, image.size, 3, scratch);
    REQUIRE(pixels == again);
    results.insert(pixels);
  }
  CHECK(results.size() == 5 + 2 * 9);
  // Colours of gray images do not change, and images may be tiny.
  for (const ImageSize size : {ImageSize{1, 1}, {1, 5}, {5, 1}})
    for (std::size_t change = 0; change < kRandomChanges; ++change) {
      std::vector<std::uint8_t> pixels(size.height * size.width, 100), scratch;
      apply(static_cast<RandomChange>(change), 9, pixels, size, 1, scratch);
      CHECK(pixels.size() == size.height * size.width);
    }
}

TEST_CASE("augmentations are parsed by name", "[augment]") {
  CHECK(parse_augmentation("none").crop == Crop::centre);
  CHECK(parse_augmentation("crop-flip").crop == Crop::shifted);
  CHECK((parse_augmentation("imagenet").flip && !parse_augmentation("imagenet").jitter));
  CHECK(parse_augmentation("imagenet-jitter").jitter);
  CHECK_THAT(test::error_of([] { parse_augmentation("cutout"); }), Catch::Contains("--augment cutout"));
}

}  // namespace annulus
