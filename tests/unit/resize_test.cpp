#include "src/data/resize.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/error_text.h"
#include "tests/unit/image_files.h"

namespace annulus {
namespace {

// The floating-point reference of one axis: the weight of input p in output i.
double weight(double from, double length, std::size_t outputs, std::size_t i, std::size_t p) {
  const double scale = length / static_cast<double>(outputs), reach = std::max(scale, 1.0);
  if (static_cast<double>(p) + 1 <= from || static_cast<double>(p) >= from + length) return 0;
  const double distance = std::abs(static_cast<double>(p) + 0.5 - from - (static_cast<double>(i) + 0.5) * scale);
  return std::max(0.0, 1 - distance / reach);
}

double reference(const Image& image, const Window& window, const ImageSize& size, std::size_t y, std::size_t x,
                 std::size_t c) {
  double sum = 0, weights = 0;
  for (std::size_t row = 0; row < image.size.height; ++row)
    for (std::size_t column = 0; column < image.size.width; ++column) {
      const double here = weight(window.top, window.height, size.height, y, row) *
                          weight(window.left, window.width, size.width, x, column);
      sum += here * image.pixels[(row * image.size.width + column) * image.channels + c];
      weights += here;
    }
  return sum / weights;
}

std::vector<std::uint8_t> resized(const Image& image, const Window& window, const ImageSize& size) {
  std::vector<std::uint8_t> into(size.height * size.width * image.channels + 1, 77);
  Resizer().resize(image, window, size, into);
  CHECK(into.back() == 77);
  into.pop_back();
  return into;
}

}  // namespace

TEST_CASE("resizing matches a floating-point reference", "[resize]") {
  for (const std::size_t channels : {1u, 3u}) {
    const Image image = test::picture({33, 47}, channels);
    for (const Window& window : {image.whole(), Window{5, 7, 20, 30}, {2.5, 3.75, 20.25, 11.5}, {32, 46, 1, 1}}) {
      for (const ImageSize size : {ImageSize{8, 9}, {33, 47}, {1, 1}, {50, 13}}) {
        const auto pixels = resized(image, window, size);
        double worst = 0;
        for (std::size_t y = 0; y < size.height; ++y)
          for (std::size_t x = 0; x < size.width; ++x)
            for (std::size_t c = 0; c < channels; ++c)
              worst = std::max(worst, std::abs(pixels[(y * size.width + x) * channels + c] -
                                               reference(image, window, size, y, x, c)));
        CHECK(worst < 0.6);  // half of it is the rounding to whole numbers
      }
    }
  }
}

TEST_CASE("images with other than 1 or 3 channels are not resized", "[resize]") {
  for (const std::size_t channels : {2u, 4u}) {
    Image image;
    image.reshape({4, 4}, channels);
    std::vector<std::uint8_t> into(4 * channels);
    CHECK_THAT(test::error_of([&] {
                 Resizer().resize(image, image.whole(), {2, 2}, into);
               }),
               Catch::Contains("only of 1 or 3"));
  }
}

TEST_CASE("resizing to the same size is the identity, and a constant image stays constant", "[resize]") {
  const Image image = test::picture({19, 40}, 3);
  CHECK(resized(image, image.whole(), image.size) == image.pixels);
  Image flat = image;
  for (const int value : {0, 1, 254, 255}) {
    std::ranges::fill(flat.pixels, static_cast<std::uint8_t>(value));
    for (const ImageSize size : {ImageSize{7, 7}, {100, 90}, {1, 40}})
      CHECK(std::ranges::count(resized(flat, {0.5, 1.25, 17, 33}, size), value) ==
            static_cast<long>(size.height * size.width * 3));
  }
}

}  // namespace annulus
