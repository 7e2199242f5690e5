#include "src/step/resident_images.h"

#include <catch2/catch.hpp>

#include "src/data/loader.h"
#include "tests/unit/data_file.h"
#include "tests/unit/random_values.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/test_device.h"

namespace annulus {
namespace {

constexpr std::size_t kImagesInAll = 31, kImagesAStep = 9;

struct ImageData {
  explicit ImageData(std::size_t channels, const Shape& shape = {kImagesInAll, 7, 5}) {
    file.images_shape = {shape[0], shape[1], shape[2], channels};
    file.images = test::random_pixels(elements(file.images_shape), 1);
    file.mean.assign(channels, 0.5f);
    file.stddev.assign(channels, 0.25f);
    file.write(folder / "data.h5");
  }

  test::TemporaryFolder folder;
  test::DataFile file{kImagesInAll};
};

}  // namespace

TEST_CASE("images that a device moves and mirrors have the pixels of the host's") {
  const std::size_t channels = GENERATE(1, 3, 4);
  const DataOptions options = GENERATE(
      DataOptions{.files = {}, .augment = "none"}, DataOptions{.files = {}, .augment = "flip"},
      DataOptions{.files = {}, .augment = "crop-flip"}, DataOptions{.files = {}, .augment = "none", .shift = 4},
      DataOptions{.files = {}, .augment = "flip", .alternate = true, .shift = 2});
  CAPTURE(channels, options.augment, options.shift);
  const ImageData data(channels);
  const Dataset dataset({data.folder / "data.h5"}, "train");
  const InputPlan input = plan_input(options, dataset.info(), Purpose::training, 1);
  REQUIRE(input.only_moves(dataset.info()));
  InputPlan referring = input;
  referring.resident = true;
  const auto device = test::make_device(1);
  ResidentImages images(*device, dataset);
  CHECK(images.bytes() == kImagesInAll * 35 * channels);
  const BatchRequest request{.seed = 3, .global_batch = kImagesAStep, .start = {}, .end_epoch = 3};
  Loader loader(dataset, input, request), references(dataset, referring, request);
  const Buffer pixels = device->allocate(kImagesAStep * 35 * channels);
  for (int step = 0; step < 12; ++step) {
    const Batch &expected = loader.next(), &shown = references.next();
    REQUIRE(shown.images.size() == shown.size() * sizeof(ShownImage));
    const DeviceView to = pixels.view().slice(0, expected.images.size());
    images.show(shown.images, to);
    const auto found = test::bytes_of(*device, to);
    CHECK(std::ranges::equal(found, std::as_bytes(std::span(expected.images))));
    CHECK(shown.labels == expected.labels);
    CHECK(shown.keys == expected.keys);
  }
}

TEST_CASE("images are kept on a GPU if they fit, and are only moved and mirrored") {
  const ImageData data(3);
  const Dataset dataset({data.folder / "data.h5"}, "train");
  const auto device = test::make_device(1);
  const auto kept = [&](const DataOptions& options) {
    return keep_on_gpu(*device, dataset, plan_input(options, dataset.info(), Purpose::training, 1)) != nullptr;
  };
  CHECK(kept({.files = {}, .augment = "crop-flip"}) == test::on_gpu());
  CHECK_FALSE(kept({.files = {}, .image = 14}));
  CHECK_FALSE(kept({.files = {}, .augment = "imagenet"}));
  CHECK_FALSE(kept({.files = {}, .rand_augment = {2, 9}}));
  CHECK_FALSE(kept({.files = {}, .erase = 0.1}));
  CHECK_FALSE(kept({.files = {}, .mixup = 0.2}));
}

}  // namespace annulus
