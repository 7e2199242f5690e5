#include "src/data/image_codec.h"

#include <png.h>

#include <catch2/catch.hpp>

#include "tests/unit/error_text.h"
#include "tests/unit/image_files.h"

namespace annulus {
namespace {

using Catch::Contains;
using test::Bytes;

Image decoded(const Bytes& bytes, std::size_t channels) {
  Image image;
  decode(bytes, channels, image);
  CHECK(image.size == image_size(bytes));
  CHECK(image.channels == channels);
  return image;
}

// The largest and the mean difference of pixels.
std::pair<int, double> difference(const Image& a, const Image& b) {
  REQUIRE(a.pixels.size() == b.pixels.size());
  int largest = 0;
  double sum = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) {
    const int here = std::abs(a.pixels[i] - b.pixels[i]);
    largest = std::max(largest, here);
    sum += here;
  }
  return {largest, sum / static_cast<double>(a.pixels.size())};
}

std::string error_of(const Bytes& bytes) {
  return test::error_of([&] { decoded(bytes, 3); });
}

}  // namespace

TEST_CASE("encodings are recognized by their magic bytes", "[image_codec]") {
  const Image image = test::picture({3, 5}, 3);
  CHECK(encoding_of(test::jpeg_of(image)) == Encoding::jpeg);
  CHECK(encoding_of(test::png_of(image)) == Encoding::png);
  CHECK(encoding_of(Bytes{}) == Encoding::unknown);
  CHECK(encoding_of(Bytes{0xff, 0xd8}) == Encoding::unknown);
  CHECK(encoding_of(Bytes{'G', 'I', 'F', '8', '9', 'a'}) == Encoding::unknown);
}

TEST_CASE("PNG decoding is exact", "[image_codec]") {
  for (const ImageSize size : {ImageSize{1, 1}, {7, 13}, {64, 3}}) {
    for (const std::size_t channels : {1u, 3u}) {
      const Image image = test::picture(size, channels);
      CHECK(decoded(test::png_of(image), channels).pixels == image.pixels);
    }
  }
}

TEST_CASE("PNG images of every colour type and bit depth", "[image_codec]") {
  const Bytes palette{10, 20, 30, 250, 100, 50, 7, 8, 9};
  CHECK(decoded(test::png_of({1, 3}, PNG_COLOR_TYPE_PALETTE, 8, {2, 0, 1}, false, palette), 3).pixels ==
        Bytes{7, 8, 9, 10, 20, 30, 250, 100, 50});
  CHECK(decoded(test::png_of({1, 3}, PNG_COLOR_TYPE_PALETTE, 2, {0b10'00'01'00}, false, palette), 3).pixels ==
        Bytes{7, 8, 9, 10, 20, 30, 250, 100, 50});
  CHECK(decoded(test::png_of({1, 4}, PNG_COLOR_TYPE_GRAY, 1, {0b1010'0000}), 3).pixels ==
        Bytes{255, 255, 255, 0, 0, 0, 255, 255, 255, 0, 0, 0});
  // 16 bits to 8, rounded: 0x8080 is 128 / 255 exactly, 0x00ff is 0.99 and 0x80ff rounds up to 128.5 and so to 128.
  CHECK(decoded(test::png_of({1, 3}, PNG_COLOR_TYPE_GRAY, 16, {0x80, 0x80, 0x00, 0xff, 0xff, 0xff}), 1).pixels ==
        Bytes{128, 1, 255});
  CHECK(decoded(test::png_of({1, 2}, PNG_COLOR_TYPE_RGB_ALPHA, 8, {1, 2, 3, 0, 4, 5, 6, 255}), 3).pixels ==
        Bytes{1, 2, 3, 4, 5, 6});
  CHECK(decoded(test::png_of({1, 2}, PNG_COLOR_TYPE_GRAY_ALPHA, 8, {9, 0, 8, 255}), 1).pixels == Bytes{9, 8});
  CHECK(decoded(test::png_of({1, 4}, PNG_COLOR_TYPE_RGB, 8, {255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9}), 1).pixels ==
        Bytes{76, 150, 29, 9});
  const Image image = test::picture({9, 11}, 3);
  CHECK(decoded(test::png_of(image.size, PNG_COLOR_TYPE_RGB, 8, image.pixels, true), 3).pixels == image.pixels);
}

TEST_CASE("JPEG decoding is within the compression error", "[image_codec]") {
  for (const bool progressive : {false, true}) {
    for (const bool halved_colours : {false, true}) {
      for (const ImageSize size : {ImageSize{1, 1}, {7, 13}, {37, 64}}) {
        const Image image = test::picture(size, 3);
        const Bytes file =
            test::jpeg_of(image, {.quality = 100, .progressive = progressive, .halved_colours = halved_colours});
        const auto [largest, mean] = difference(decoded(file, 3), image);
        CHECK(largest <= (halved_colours ? 24 : 4));
        CHECK(mean <= (halved_colours ? 4 : 1));
      }
    }
  }
  const Image gray = test::picture({20, 30}, 1);
  CHECK(difference(decoded(test::jpeg_of(gray, {.quality = 100}), 1), gray).first <= 1);
  const Image colours = decoded(test::jpeg_of(gray, {.quality = 100}), 3);
  for (std::size_t i = 0; i < colours.pixels.size(); i += 3) {
    CHECK(colours.pixels[i] == colours.pixels[i + 1]);
    CHECK(colours.pixels[i] == colours.pixels[i + 2]);
  }
}

TEST_CASE("CMYK JPEG images become RGB, inverted by Adobe or not", "[image_codec]") {
  Image inks;
  inks.reshape({8, 8}, 4);
  const Bytes full{0, 64, 128, 51};  // cyan, magenta, yellow, black: of 255
  for (std::size_t i = 0; i < inks.pixels.size(); ++i) inks.pixels[i] = full[i % 4];
  const auto expect = [](const Image& image, const Bytes& pixel) {
    for (std::size_t i = 0; i < image.pixels.size(); ++i)
      REQUIRE(image.pixels[i] == Approx(pixel[i % pixel.size()]).margin(2));
  };
  // (255 - ink) x (255 - black) / 255
  expect(decoded(test::jpeg_of(inks, {.quality = 100, .adobe_marker = false}), 3), {204, 153, 102});
  expect(decoded(test::jpeg_of(inks, {.quality = 100, .adobe_marker = false}), 1), {162});
  for (std::uint8_t& ink : inks.pixels) ink = static_cast<std::uint8_t>(255 - ink);
  expect(decoded(test::jpeg_of(inks, {.quality = 100, .adobe_marker = true}), 3), {204, 153, 102});
}

TEST_CASE("a decoded JPEG crop equals the crop of the decoded image", "[image_codec]") {
  const ImageSize size{90, 110};
  for (const bool progressive : {false, true}) {
    const Bytes file = test::jpeg_of(test::picture(size, 3), {.progressive = progressive});
    const Image whole = decoded(file, 3);
    for (const Window& crop : {Window{0, 0, 90, 110},
                               {0, 0, 1, 1},
                               {89, 109, 1, 1},
                               {17, 33, 50, 41},
                               {16, 32, 16, 32},
                               {40.5, 50.25, 9.5, 20.5}}) {
      Image part;
      const Window found = decode_crop(file, 3, crop, size, part);
      CHECK(found.height == crop.height);
      CHECK(found.width == crop.width);
      const auto first_row = static_cast<std::size_t>(crop.top), first_column = static_cast<std::size_t>(crop.left);
      int largest = 0;
      for (std::size_t y = 0; y < static_cast<std::size_t>(crop.height); ++y)
        for (std::size_t x = 0; x < static_cast<std::size_t>(crop.width); ++x)
          for (std::size_t c = 0; c < 3; ++c) {
            const std::size_t at = static_cast<std::size_t>(found.left) + x;
            REQUIRE(static_cast<std::size_t>(found.top) + y < part.size.height);
            REQUIRE(at < part.size.width);
            largest = std::max(largest, std::abs(part.row(static_cast<std::size_t>(found.top) + y)[3 * at + c] -
                                                 whole.pixels[((first_row + y) * 110 + first_column + x) * 3 + c]));
          }
      CHECK(largest <= 8);  // colours at the crop's edge are interpolated from less
    }
  }
}

TEST_CASE("a large crop for a small output is decoded at reduced scale", "[image_codec]") {
  const Bytes file = test::jpeg_of(test::picture({400, 600}, 3));
  const auto decoded_width = [&](const Window& crop, const ImageSize& least) {
    Image image;
    const Window found = decode_crop(file, 3, crop, least, image);
    CHECK(found.height / found.width == Approx(crop.height / crop.width));
    CHECK(found.top + found.height <= static_cast<double>(image.size.height));
    CHECK(found.left + found.width <= static_cast<double>(image.size.width));
    return found.width;
  };
  const Window whole{0, 0, 400, 600};
  CHECK(decoded_width(whole, {200, 300}) == 300);
  CHECK(decoded_width(whole, {201, 300}) == 600);
  CHECK(decoded_width(whole, {100, 100}) == 150);
  CHECK(decoded_width(whole, {1, 1}) == 75);
  CHECK(decoded_width({101, 203, 200, 301}, {100, 100}) == 150.5);
  CHECK(decoded_width({0, 0, 400, 600}, {500, 600}) == 600);
}

TEST_CASE("complete baseline images that are decoded at full scale are for a GPU", "[image_codec]") {
  const Image image = test::picture({90, 110}, 3);
  const Window crop{20.5, 10, 30, 40};
  const auto rows = [&](const Bytes& bytes, std::size_t channels = 3) {
    return baseline_rows(bytes, channels, crop, {30, 40});
  };
  const Bytes file = test::jpeg_of(image);
  CHECK(rows(file) == Range{20, 51});
  CHECK(rows(file, 1) == Range{20, 51});
  CHECK(baseline_rows(file, 3, {70, 0, 20, 110}, {30, 40}) == Range{70, 90});
  CHECK(baseline_rows(file, 3, crop, {16, 20}) == Range{20, 51});
  CHECK_FALSE(baseline_rows(file, 3, crop, {15, 20}));
  const Bytes gray = test::jpeg_of(test::picture({90, 110}, 1));
  CHECK(rows(gray, 1));
  CHECK_FALSE(rows(gray, 3));
  CHECK_FALSE(rows(test::jpeg_of(image, {.progressive = true})));
  CHECK_FALSE(rows(test::jpeg_of(image, {.arithmetic = true})));
  CHECK_FALSE(rows(test::jpeg_of(test::picture({90, 110}, 4))));
  CHECK_FALSE(rows(test::png_of(image)));
  Bytes changed = file;
  changed.resize(file.size() - 1);
  CHECK_FALSE(rows(changed));
  changed = file;
  changed.insert(changed.end(), {0xff, 0xd9});
  CHECK_FALSE(rows(changed));
  changed = file;
  std::ranges::copy(Bytes{0xff, 0xd9}, changed.end() - 40);
  CHECK_FALSE(rows(changed));
}

TEST_CASE("damaged images throw Error", "[image_codec]") {
  const Image image = test::picture({40, 60}, 3);
  const Bytes jpeg = test::jpeg_of(image), png = test::png_of(image);
  CHECK_THAT(error_of({}), Contains("empty"));
  CHECK_THAT(error_of({'n', 'o'}), Contains("neither a JPEG nor a PNG image"));
  for (const Bytes& whole : {jpeg, test::jpeg_of(image, {.progressive = true}), png})
    for (const std::size_t size :
         {std::size_t{3}, std::size_t{9}, std::size_t{20}, std::size_t{150}, whole.size() / 2, whole.size() - 9})
      CHECK_FALSE(error_of(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))).empty());
  CHECK_THAT(error_of(Bytes(jpeg.begin(), jpeg.begin() + static_cast<std::ptrdiff_t>(jpeg.size() / 2))),
             Contains("damaged JPEG image: Premature end"));
  CHECK_THAT(error_of(Bytes(png.begin(), png.begin() + static_cast<std::ptrdiff_t>(png.size() / 2))),
             Contains("damaged PNG image: cut off"));
  Bytes changed = png;
  changed[changed.size() / 2] ^= 1;
  CHECK_THAT(error_of(changed), Contains("damaged PNG image"));
  changed = jpeg;
  std::fill(changed.begin() + static_cast<std::ptrdiff_t>(jpeg.size() / 2), changed.end() - 2, std::uint8_t{0xff});
  CHECK_THAT(error_of(changed), Contains("damaged JPEG image"));
}

TEST_CASE("too large images throw Error, however small the file", "[image_codec]") {
  Bytes jpeg = test::jpeg_of(test::picture({8, 8}, 1));
  const Bytes frame{0xff, 0xc0};
  const auto header = std::search(jpeg.begin(), jpeg.end(), frame.begin(), frame.end());
  REQUIRE(header != jpeg.end());
  std::fill_n(header + 5, 4, std::uint8_t{0xf0});  // height and width
  CHECK_THAT(error_of(jpeg), Contains("61680x61680 pixels, above the limit of 100000000"));
  Bytes png = test::png_of(test::picture({8, 8}, 1));
  png[18] = png[22] = 0xff;  // which makes the header's checksum wrong
  CHECK_THAT(error_of(png), Contains("damaged PNG image"));
}

TEST_CASE("decoding to other than 1 or 3 channels is refused", "[image_codec]") {
  CHECK_THAT(test::error_of([] { decoded(test::png_of(test::picture({2, 2}, 1)), 2); }), Contains("not 2"));
}

}  // namespace annulus
