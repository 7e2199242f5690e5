#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/cuda/make_cuda_device.h"
#include "src/data/image_codec.h"
#include "tests/unit/image_files.h"

using namespace annulus;
using test::Bytes;

namespace {

// None on a GPU without a decoder, or without nvJPEG.
std::unique_ptr<JpegDecoder> decoder(std::size_t channels) try {
  return make_jpeg_decoder(0, channels);
} catch (const Error& error) {
  WARN(error.what());
  return nullptr;
}

struct Case {
  Bytes file;
  Image expected{}, rows{};
};

Case case_of(const Bytes& file, std::size_t channels, std::size_t first_row, std::size_t count) {
  Case made{file};
  Image whole;
  decode(file, channels, whole);
  made.expected.reshape({count, whole.size.width}, channels);
  std::copy_n(whole.row(first_row).begin(), made.expected.pixels.size(), made.expected.pixels.begin());
  made.rows.reshape(made.expected.size, channels);
  return made;
}

// Colours are upsampled in another way than by libjpeg.
double mean_difference(const Image& a, const Image& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) sum += std::abs(a.pixels[i] - b.pixels[i]);
  return sum / static_cast<double>(a.pixels.size());
}

}  // namespace

TEST_CASE("the GPU decodes rows of JPEG images as libjpeg does, whatever else is in the batch") {
  for (const std::size_t channels : {3u, 1u}) {
    const auto by_gpu = decoder(channels);
    if (!by_gpu) return;
    std::vector<Case> cases;
    for (const bool halved_colours : {false, true})
      for (const ImageSize size : {ImageSize{64, 64}, {480, 640}, {333, 500}, {97, 131}})
        cases.push_back(case_of(test::jpeg_of(test::picture(size, channels), {.halved_colours = halved_colours}),
                                channels, size.height / 3, size.height / 2));
    std::vector<JpegJob> jobs;
    for (Case& one : cases)
      jobs.push_back({.file = one.file,
                      .height = image_size(one.file).height,
                      .width = one.rows.size.width,
                      .first_row = image_size(one.file).height / 3,
                      .pixels = one.rows.pixels});
    // A damaged image, which only the caller's decoder may accept, and one that is no JPEG image.
    const Bytes damaged(cases[1].file.begin(), cases[1].file.begin() + 700), other(100, 0);
    Image unused;
    unused.reshape({480, 640}, channels);
    for (const Bytes& file : {std::cref(damaged), std::cref(other)})
      jobs.insert(jobs.begin() + 2, {.file = file, .height = 480, .width = 640, .pixels = unused.pixels});
    for (int repetition = 0; repetition < 3; ++repetition) {
      by_gpu->decode(jobs);
      CHECK_FALSE(jobs[2].decoded);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        CHECK(jobs[i < 2 ? i : i + 2].decoded);
        CHECK(mean_difference(cases[i].rows, cases[i].expected) < 4);
        std::ranges::fill(cases[i].rows.pixels, std::uint8_t{0});
      }
    }
  }
}
