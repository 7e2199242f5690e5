#include "src/data/loader.h"

#include <catch2/catch.hpp>
#include <deque>
#include <numeric>
#include <set>
#include <thread>

#include "kernels/base/random.h"
#include "src/data/image_codec.h"
#include "src/data/resize.h"
#include "tests/read_sample.h"
#include "tests/unit/data_file.h"
#include "tests/unit/error_text.h"
#include "tests/unit/image_files.h"
#include "tests/unit/random_values.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

constexpr std::size_t kSize = 103;
constexpr std::uint64_t kSeed = 5;

Dataset write_and_open(const test::DataFile& data, const std::filesystem::path& file) {
  data.write(file);
  return {{file}, "train"};
}

InputPlan plan(const Dataset& dataset, const DataOptions& options = {}) {
  return plan_input(options, dataset.info(), Purpose::training, 1);
}

// A data file whose image number n is filled with n.
struct Data {
  test::TemporaryFolder folder;
  Dataset dataset = write_and_open(test::DataFile(kSize), folder / "data.h5");
};

// The samples of a batch, identified by their pixels.
std::vector<std::size_t> samples(const Batch& batch) {
  std::vector<std::size_t> result;
  REQUIRE(batch.images.size() == 4 * batch.size());
  REQUIRE(batch.keys.size() == batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::uint8_t first = batch.images[4 * i];
    REQUIRE(batch.images[4 * i + 3] == first);
    REQUIRE(batch.labels[i] == first % 2);
    REQUIRE(batch.keys[i] == static_cast<std::int32_t>(mix(kSeed, batch.step.epoch, first)));  // for any rank
    result.push_back(first);
  }
  return result;
}

// All ranks' samples of an epoch, step by step.
std::vector<std::size_t> epoch(const Data& data, std::size_t global_batch, int ranks, Cursor start) {
  std::deque<Loader> loaders;
  for (int rank = 0; rank < ranks; ++rank)
    loaders.emplace_back(data.dataset, plan(data.dataset), BatchRequest{kSeed, global_batch, rank, ranks, start});
  std::vector<std::size_t> result;
  for (bool last = false; !last;) {
    for (Loader& loader : loaders) {
      const Batch& batch = loader.next();
      const std::vector<std::size_t> share = samples(batch);
      result.insert(result.end(), share.begin(), share.end());
      last = batch.step.last_of_epoch;
    }
  }
  return result;
}

// Small encoded images of both formats and many sizes, all different.
test::DataFile encoded_file(std::size_t size) {
  test::DataFile data(size);
  data.mean = data.stddev = {0.5f, 0.5f, 0.5f};
  std::vector<std::vector<std::uint8_t>> files;
  for (std::size_t i = 0; i < size; ++i) {
    const Image image = test::picture({20 + i % 7, 30 + i % 5}, 3);
    files.push_back(i % 3 == 0 ? test::png_of(image) : test::jpeg_of(image));
  }
  data.encode(files);
  return data;
}

struct EncodedData {
  explicit EncodedData(const test::DataFile& data) : dataset(write_and_open(data, folder / "data.h5")) {}
  test::TemporaryFolder folder;
  Dataset dataset;
};

// The batches of all ranks in some steps.
struct Delivered {
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels, keys;
  std::vector<MixedLabel> mixed_labels;
  std::vector<std::size_t> bad;

  bool operator==(const Delivered&) const = default;
};

// Whether pixels are an image's, shifted by up to 4 and perhaps flipped.
bool is_shifted(const std::vector<std::uint8_t>& pixels, const Image& image) {
  const auto [height, width] = image.size;
  const auto is_equal = [&](std::size_t down, std::size_t right, bool flipped) {
    for (std::size_t y = 0; y < height; ++y)
      for (std::size_t x = 0; x < width; ++x) {
        const std::size_t from_y = y + down - 4, from_x = x + right - 4, at = flipped ? width - 1 - x : x;
        for (std::size_t c = 0; c < 3; ++c) {
          const bool inside = from_y < height && from_x < width;
          const int expected = inside ? image.pixels[(from_y * width + from_x) * 3 + c] : 0;
          if (pixels[(y * width + at) * 3 + c] != expected) return false;
        }
      }
    return true;
  };
  for (std::size_t i = 0; i < 162; ++i)
    if (is_equal(i / 18, i / 2 % 9, i % 2 == 1)) return true;
  return false;
}

Delivered deliver(const Dataset& dataset, const DataOptions& options, Purpose purpose, int ranks, std::size_t steps) {
  const InputPlan input = plan_input(options, dataset.info(), purpose, 1);
  std::deque<Loader> loaders;
  for (int rank = 0; rank < ranks; ++rank) loaders.emplace_back(dataset, input, BatchRequest{5, 12, rank, ranks, {}});
  Delivered result;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (std::size_t step = 0; step < steps; ++step)
    for (Loader& loader : loaders) {
      const Batch& batch = loader.next();
      CHECK(batch.images.size() == batch.size() * input.image_bytes());
      CHECK(batch.keys.size() == batch.size());
      append(result.images, batch.images);
      append(result.labels, batch.labels);
      append(result.keys, batch.keys);
      append(result.mixed_labels, batch.mixed_labels);
      for (const BadSample& bad : batch.bad) result.bad.push_back(bad.sample);
    }
  std::ranges::sort(result.bad);
  return result;
}

}  // namespace

TEST_CASE("batches are bit-identical for any threads, ranks and prefetching", "[loader]") {
  const EncodedData data(encoded_file(31));
  for (const std::string augment : {"auto", "crop-flip", "imagenet-jitter"}) {
    for (const std::string shuffle : {"global", "block"}) {
      DataOptions options{
          .files = {}, .image = 16, .augment = augment, .shuffle = shuffle, .shuffle_block = 4, .shuffle_window = 2};
      const Delivered alone = deliver(data.dataset, options, Purpose::training, 1, 5);
      CHECK(alone.labels.size() == 12 + 12 + 7 + 12 + 12);
      for (const auto& [workers, prefetch, ranks] : {std::tuple{3, 1, 1}, {1, 7, 2}, {4, 2, 3}, {2, 3, 7}}) {
        options.workers = static_cast<std::size_t>(workers);
        options.prefetch = static_cast<std::size_t>(prefetch);
        CHECK(deliver(data.dataset, options, Purpose::training, ranks, 5) == alone);
      }
    }
  }
}

TEST_CASE("batches are bit-identical whichever images a device decodes", "[loader]") {
  // Decodes images with an odd number of columns, by libjpeg.
  struct Decoder final : JpegDecoder {
    void decode(std::span<JpegJob> jobs) override {
      Image image;
      for (JpegJob& job : jobs) {
        job.decoded = false;
        if (job.width % 2 == 0) continue;
        annulus::decode(job.file, 3, image);
        job.decoded = image.size == ImageSize{job.height, job.width};
        if (!job.decoded) continue;
        std::ranges::copy(std::span(image.pixels).subspan(job.first_row * job.width * 3, job.pixels.size()),
                          job.pixels.begin());
      }
    }
  };
  test::DataFile file(31);
  file.mean = file.stddev = {0.5f, 0.5f, 0.5f};
  std::vector<std::vector<std::uint8_t>> files;
  for (std::size_t i = 0; i < 31; ++i)  // with all colours, because those at a crop's edge are interpolated from less
    files.push_back(test::jpeg_of(test::picture({20 + i % 7, 30 + i % 5}, 3),
                                  {.progressive = i % 4 == 0, .halved_colours = false}));
  files[9] = {};
  file.encode(files);
  const EncodedData data(file);
  const DataOptions options{.files = {}, .image = 16, .on_bad_sample = "skip"};
  InputPlan input = plan_input(options, data.dataset.info(), Purpose::training, 1);
  const auto deliver_with = [&](std::size_t workers) {
    input.workers = workers;
    Loader loader(data.dataset, input, {5, 12, 0, 1, {}});
    std::vector<std::uint8_t> images;
    for (int step = 0; step < 6; ++step) {
      const Batch& batch = loader.next();
      images.insert(images.end(), batch.images.begin(), batch.images.end());
    }
    return std::pair(images, loader.times().by_device);
  };
  const auto [alone, by_none] = deliver_with(1);
  CHECK(by_none == 0);
  input.make_decoder = [] { return std::make_unique<Decoder>(); };
  for (const std::size_t workers : {1, 4}) {
    const auto [images, by_device] = deliver_with(workers);
    CHECK(images == alone);
    CHECK(by_device > 10);
  }
}

TEST_CASE("each image is mixed with the next one of the epoch, on any number of ranks", "[loader]") {
  constexpr std::size_t kImages = 31, kBytes = 30;
  test::DataFile file(kImages);
  file.images_shape = {kImages, 6, 5, 1};
  file.images = test::random_pixels(kImages * kBytes, 1);
  const test::TemporaryFolder folder;
  const Dataset dataset = write_and_open(file, folder / "data.h5");
  DataOptions options{.files = {}, .augment = "flip"};
  const Delivered plain = deliver(dataset, options, Purpose::training, 1, 3);
  CHECK(plain.mixed_labels.empty());
  options.mixup = 1;
  const Delivered mixed = deliver(dataset, options, Purpose::training, 1, 3);
  REQUIRE(mixed.mixed_labels.size() == kImages);
  CHECK(mixed.labels == plain.labels);
  CHECK(mixed.keys == plain.keys);
  bool first_is_own = false, first_is_next = false;
  for (std::size_t i = 0; i < kImages; ++i) {
    const std::size_t next = (i + 1) % kImages;
    const MixedLabel& found = mixed.mixed_labels[i];
    CHECK(2 * found.share >= MixedLabel::kWhole);
    const auto is_mixture = [&](std::size_t first, std::size_t second) {
      bool equal = found.label == plain.labels[first] && found.other == plain.labels[second];
      for (std::size_t k = 0; k < kBytes; ++k) {
        const std::int32_t sum = found.share * plain.images[first * kBytes + k] +
                                 (MixedLabel::kWhole - found.share) * plain.images[second * kBytes + k];
        equal = equal && mixed.images[i * kBytes + k] == (sum + MixedLabel::kWhole / 2) / MixedLabel::kWhole;
      }
      return equal;
    };
    CHECK((is_mixture(i, next) || is_mixture(next, i)));
    first_is_own = first_is_own || is_mixture(i, next);
    first_is_next = first_is_next || is_mixture(next, i);
  }
  CHECK((first_is_own && first_is_next));
  options.cutmix = 1;
  options.workers = 1;
  const Delivered alone = deliver(dataset, options, Purpose::training, 1, 5);
  for (const auto& [workers, ranks] : {std::pair{3, 1}, {1, 2}, {3, 5}, {2, 13}}) {
    options.workers = static_cast<std::size_t>(workers);
    CHECK(deliver(dataset, options, Purpose::training, ranks, 5) == alone);
  }
}

TEST_CASE("batches of decoded images are bit-identical for any threads and ranks, copied together or not", "[loader]") {
  test::DataFile file(31);
  file.images_shape = {31, 6, 5, 1};
  file.images = test::random_pixels(31 * 30, 1);
  const test::TemporaryFolder folder;
  const Dataset dataset = write_and_open(file, folder / "contiguous.h5");
  file.images_per_chunk = 4;
  const Dataset chunked = write_and_open(file, folder / "chunked.h5");
  for (const std::string augment : {"none", "crop-flip"}) {
    DataOptions options{.files = {}, .augment = augment};
    const Delivered alone = deliver(dataset, options, Purpose::training, 1, 5);
    CHECK(deliver(chunked, options, Purpose::training, 1, 5) == alone);
    for (const auto& [workers, prefetch, ranks] : {std::tuple{3, 1, 1}, {1, 7, 2}, {2, 3, 7}}) {
      options.workers = static_cast<std::size_t>(workers);
      options.prefetch = static_cast<std::size_t>(prefetch);
      CHECK(deliver(dataset, options, Purpose::training, ranks, 5) == alone);
    }
  }
}

TEST_CASE("augmentation differs in every epoch, and evaluation has none", "[loader]") {
  const EncodedData data(encoded_file(12));
  const DataOptions options{.files = {}, .image = 16};
  const auto epochs = deliver(data.dataset, options, Purpose::evaluation, 1, 2);
  const auto half = epochs.images.begin() + static_cast<std::ptrdiff_t>(epochs.images.size() / 2);
  CHECK(std::equal(epochs.images.begin(), half, half));
  std::set<std::int32_t> keys;
  for (const std::int32_t key : deliver(data.dataset, options, Purpose::training, 1, 3).keys) keys.insert(key);
  CHECK(keys.size() == 36);
}

TEST_CASE("images flip in every second epoch, on any number of ranks", "[loader]") {
  test::DataFile file(31);
  file.images_shape = {31, 6, 5, 1};
  file.images = test::random_pixels(31 * 30, 1);
  const test::TemporaryFolder folder;
  const Dataset dataset = write_and_open(file, folder / "data.h5");
  DataOptions options{.files = {}, .augment = "flip", .alternate = true};
  const InputPlan input = plan_input(options, dataset.info(), Purpose::training, 1);
  Loader loader(dataset, input, {kSeed, 31, 0, 1, {}});
  std::vector<std::vector<std::uint8_t>> epochs;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const Batch& batch = loader.next();
    auto& images = epochs.emplace_back(batch.images.size());  // by sample
    const EpochOrder order(31, kSeed, epoch);
    for (std::size_t i = 0; i < 31; ++i)
      std::copy_n(batch.images.data() + 30 * i, 30, images.data() + 30 * order.sample(i));
  }
  CHECK(epochs[0] == epochs[2]);
  for (std::size_t sample = 0; sample < 31; ++sample) {
    const auto own = std::span(epochs[0]).subspan(30 * sample, 30);
    flip_left_to_right(own, {6, 5}, 1);
    CHECK(std::ranges::equal(own, std::span(epochs[1]).subspan(30 * sample, 30)));
  }
  options.shift = 2;
  const Delivered alone = deliver(dataset, options, Purpose::training, 1, 6);
  for (const int ranks : {2, 3, 4, 7}) CHECK(deliver(dataset, options, Purpose::training, ranks, 6) == alone);
}

TEST_CASE("flips that alternate need flips, and shifts whole images", "[loader]") {
  const Data data;
  const auto error = [&](const DataOptions& options) {
    return test::error_of([&] { plan_input(options, data.dataset.info(), Purpose::training, 1); });
  };
  CHECK(error({.files = {}, .augment = "none", .alternate = true}) ==
        "--augment alternate: nothing is flipped; choose flip or another augmentation that flips");
  CHECK(error({.files = {}, .augment = "crop-flip", .shift = 1}) ==
        "--augment shift: this augmentation crops at random; choose none or flip");
  CHECK(error({.files = {}, .augment = "flip", .shift = 2}) ==
        "--augment shift=2: images of 2x2 are too small to be shifted so far");
  CHECK_NOTHROW(plan_input({.files = {}, .augment = "none", .shift = 1}, data.dataset.info(), Purpose::training, 1));
}

TEST_CASE("a batch that is ready can be seen before it is taken", "[loader]") {
  const Data data;
  Loader loader(data.dataset, plan(data.dataset), {.seed = kSeed, .global_batch = 50, .start = {}, .end_epoch = 1});
  for (int step = 0; step < 3; ++step) {
    while (loader.peek() == nullptr) std::this_thread::yield();
    const Batch* const seen = loader.peek();
    const std::vector<std::size_t> images = samples(*seen);
    const Batch& taken = loader.next();
    CHECK(&taken == seen);
    CHECK(samples(taken) == images);
  }
  CHECK(loader.peek() == nullptr);
}

TEST_CASE("a batch holds its samples' images", "[loader]") {
  const EncodedData data(encoded_file(9));
  const DataOptions options{.files = {}, .image = 8};
  const InputPlan input = plan_input(options, data.dataset.info(), Purpose::training, 1);
  Loader loader(data.dataset, input, {5, 9, 0, 1, {}});
  const Batch& batch = loader.next();
  SampleReader reader(data.dataset, input);
  std::vector<std::uint8_t> image(input.image_bytes());
  const EpochOrder order(9, 5, 0);
  for (std::size_t i = 0; i < 9; ++i) {
    const std::size_t sample = order.sample(i);
    CHECK(test::read_sample(reader, sample, mix(5, 0, sample), image) == batch.labels[i]);
    CHECK(std::ranges::equal(image, std::span(batch.images).subspan(i * image.size(), image.size())));
    CHECK(batch.keys[i] == static_cast<std::int32_t>(mix(5, 0, sample)));
  }
}

TEST_CASE("decoded images are resized on request", "[loader]") {
  const Data data;
  const Delivered larger = deliver(data.dataset, {.files = {}, .image = 5}, Purpose::training, 1, 1);
  CHECK(larger.images.size() == 12 * 25);
  const EpochOrder order(kSize, 5, 0);
  for (std::size_t i = 0; i < larger.images.size(); ++i) CHECK(larger.images[i] == order.sample(i / 25));
}

TEST_CASE("encoded images of exactly the network's size are used whole, others without the margin", "[loader]") {
  const Image exact = test::picture({24, 24}, 3), larger = test::picture({48, 48}, 3);
  test::DataFile file(24);
  file.mean = file.stddev = {0.5f, 0.5f, 0.5f};
  std::vector<std::vector<std::uint8_t>> files;
  for (std::size_t i = 0; i < 24; ++i) files.push_back(test::png_of(i % 2 == 0 ? exact : larger));
  file.encode(files);
  const EncodedData data(file);
  const DataOptions options{.files = {}, .image = 24};
  CHECK_THAT(
      to_string(plan_input(options, data.dataset.info(), Purpose::evaluation, 1)),
      Catch::StartsWith("24x24x3: centre crop; evaluated without a margin of 256/224 (images of 24x24: whole); "));
  std::vector<std::uint8_t> cropped(exact.pixels.size());
  Resizer().resize(larger, centre_crop(larger.size, exact.size, 256.0 / 224), exact.size, cropped);
  const Delivered found = deliver(data.dataset, options, Purpose::evaluation, 1, 2);
  REQUIRE(found.images.size() == 24 * exact.pixels.size());
  for (std::size_t i = 0; i < 24; ++i) {
    CAPTURE(i);
    const auto begin = found.images.begin() + static_cast<std::ptrdiff_t>(i * exact.pixels.size());
    CHECK(std::ranges::equal(i % 2 == 0 ? exact.pixels : cropped,
                             std::span(begin, begin + static_cast<std::ptrdiff_t>(exact.pixels.size()))));
  }
  // Crops that are shifted are not scaled either: black fills the border.
  DataOptions shifted = options;
  shifted.augment = "crop-flip";
  const Delivered moved = deliver(data.dataset, shifted, Purpose::training, 1, 2);
  std::size_t whole = 0;
  for (std::size_t i = 0; i < 24; ++i) {
    const auto begin = moved.images.begin() + static_cast<std::ptrdiff_t>(i * exact.pixels.size());
    whole += is_shifted({begin, begin + static_cast<std::ptrdiff_t>(exact.pixels.size())}, exact);
  }
  CHECK(whole == 12);
}

TEST_CASE("resizing images with other than 1 or 3 channels is refused", "[loader]") {
  DatasetInfo info;
  info.size = 4, info.height = info.width = 8, info.channels = 4;
  const auto plan_with = [&info](const std::string& augment, std::size_t image) {
    DataOptions options;
    options.augment = augment, options.image = image;
    return plan_input(options, info, Purpose::training, 1);
  };
  CHECK(plan_with("crop-flip", 0).channels == 4);
  CHECK_THAT(test::error_of([&] { plan_with("imagenet", 0); }), Catch::Contains("--augment: cannot resize"));
  CHECK_THAT(test::error_of([&] { plan_with("none", 4); }), Catch::Contains("--image 4: cannot resize images of 4"));
}

TEST_CASE("a bad sample ends the run, or is skipped", "[loader]") {
  test::DataFile file = encoded_file(24);
  const auto damage = GENERATE(as<std::string>{}, "cut off", "empty", "no image", "label", "offsets", "much");
  std::vector<std::size_t> expected{7};
  const auto begin = static_cast<std::size_t>(file.offsets[7]);
  std::string reason = "damaged JPEG image";
  if (damage == "cut off") {
    const std::vector<std::uint8_t> scan{0xff, 0xda}, end{0xff, 0xd9};  // the end is soon after the begin of the scan
    const auto at = std::search(file.bytes.begin() + static_cast<std::ptrdiff_t>(begin), file.bytes.end(), scan.begin(),
                                scan.end());
    std::ranges::copy(end, at + 20);
  }
  if (damage == "empty") {
    file.offsets[8] = file.offsets[7];
    std::fill_n(file.bytes.begin() + static_cast<std::ptrdiff_t>(begin), 3, std::uint8_t{0});  // now of sample 8
    reason = "train sample ";
    expected = {7, 8};
  }
  if (damage == "no image") {
    std::fill_n(file.bytes.begin() + static_cast<std::ptrdiff_t>(begin), 8, std::uint8_t{'x'});
    reason = "neither a JPEG nor a PNG image";
  }
  if (damage == "label") {
    file.labels[7] = 2;
    reason = "label 2, but there are 2 classes";
  }
  if (damage == "offsets") {
    file.offsets[8] = 1 << 30;
    reason = "its offsets are wrong";
    expected = {7, 8};
  }
  if (damage == "much") {
    for (std::size_t i = 3; i < 9; ++i) file.labels[i] = -1;
    reason = "label -1";
    expected = {3, 4, 5, 6, 7, 8};
  }
  const EncodedData data(file);
  DataOptions options{.files = {}, .image = 16};
  const std::string error = test::error_of([&] { deliver(data.dataset, options, Purpose::training, 1, 2); });
  CHECK_THAT(error, Catch::Contains("data.h5: train sample ") && Catch::Contains(reason) &&
                        Catch::Contains("--on-bad-sample skip"));

  options.on_bad_sample = "skip";
  const Delivered training = deliver(data.dataset, options, Purpose::training, 1, 2);
  CHECK(training.labels.size() == 24);
  CHECK(training.bad == expected);
  // The next good samples take their places.
  const std::size_t next = expected.back() + 1;
  CHECK(std::ranges::count(training.keys, static_cast<std::int32_t>(mix(5, 0, next))) ==
        static_cast<long>(expected.size() + 1));
  const Delivered evaluation = deliver(data.dataset, options, Purpose::evaluation, 1, 2);
  CHECK(evaluation.labels.size() == 24 - expected.size());
  CHECK(evaluation.bad == expected);
  for (const int ranks : {2, 3}) {
    options.workers = 2;
    CHECK(deliver(data.dataset, options, Purpose::training, ranks, 2) == training);
    CHECK(deliver(data.dataset, options, Purpose::evaluation, ranks, 2) == evaluation);
  }
}

TEST_CASE("data without any good sample ends the run, skipping or not", "[loader]") {
  test::DataFile file(150);
  std::ranges::fill(file.labels, 5);
  const EncodedData data(file);
  const DataOptions options{.files = {}, .on_bad_sample = "skip"};
  CHECK_THAT(test::error_of([&] { deliver(data.dataset, options, Purpose::training, 1, 1); }),
             Catch::Contains("and the next 99 samples are bad too"));
  CHECK(deliver(data.dataset, options, Purpose::evaluation, 1, 2).bad.size() == 24);
}

TEST_CASE("images truncated during a run end it, or are skipped", "[loader]") {
  const Data data;
  const std::filesystem::path file = data.folder / "data.h5";
  std::filesystem::resize_file(file, test::place_of_image(file, 90) + 1);
  DataOptions options{.files = {}};
  CHECK_THAT(test::error_of([&] { deliver(data.dataset, options, Purpose::training, 2, 9); }),
             Catch::Contains("data.h5: train sample ") && Catch::Contains("before the end of the requested data"));
  options.on_bad_sample = "skip";
  std::vector<std::size_t> cut_off(kSize - 90);
  std::iota(cut_off.begin(), cut_off.end(), 90);
  for (const int ranks : {1, 2}) {
    const Delivered evaluation = deliver(data.dataset, options, Purpose::evaluation, ranks, 9);
    CHECK(evaluation.bad == cut_off);
    std::vector<std::uint8_t> whole;
    for (std::uint8_t sample = 0; sample < 90; ++sample) whole.insert(whole.end(), 4, sample);
    CHECK(evaluation.images == whole);
    const Delivered training = deliver(data.dataset, options, Purpose::training, ranks, 9);
    CHECK(training.bad == cut_off);
    CHECK(training.labels.size() == kSize);
    CHECK(std::ranges::count(training.images, 0) == 4 * static_cast<long>(1 + cut_off.size()));  // replaces them
  }
}

TEST_CASE("a loader ends at the end of an epoch", "[loader]") {
  const Data data;
  const InputPlan input = plan_input({}, data.dataset.info(), Purpose::evaluation, 1);
  for (const int ranks : {1, 3}) {
    std::vector<std::size_t> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(data.dataset, input, {kSeed, 10, rank, ranks, {}, 1});
      for (bool last = false; !last;) {
        const Batch& batch = loader.next();
        last = batch.step.last_of_epoch;
        const auto share = samples(batch);
        seen.insert(seen.end(), share.begin(), share.end());
      }
    }
    std::ranges::sort(seen);
    std::vector<std::size_t> all(kSize);
    std::iota(all.begin(), all.end(), 0);
    CHECK(seen == all);
  }
}

TEST_CASE("the ranks together read every sample once per epoch, in the epoch's order", "[loader]") {
  const Data data;
  const EpochOrder order(kSize, kSeed, 2);
  std::vector<std::size_t> expected;
  for (std::size_t position = 0; position < kSize; ++position) expected.push_back(order.sample(position));
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t global_batch : {3u, 10u, 64u, 200u}) {
      CHECK(epoch(data, global_batch, ranks, {2, 0}) == expected);
    }
  }
}

TEST_CASE("of 1003 samples in 7 files, 4 ranks together read each once per epoch", "[loader]") {
  const test::TemporaryFolder folder;
  std::vector<std::filesystem::path> files;
  std::size_t size = 0;
  for (const std::size_t part : {1u, 2u, 100u, 300u, 400u, 199u, 1u}) {
    test::DataFile data(part);
    for (std::size_t i = 0; i < part; ++i, ++size) {  // a sample's first two pixels are its number
      data.images[4 * i] = static_cast<std::uint8_t>(size % 256);
      data.images[4 * i + 1] = static_cast<std::uint8_t>(size / 256);
    }
    data.write(files.emplace_back(folder / fmt::format("{}.h5", files.size())));
  }
  REQUIRE(size == 1003);
  const Dataset dataset(files, "train");
  const std::string shuffle = GENERATE("global", "block");
  const std::size_t global_batch = GENERATE(3, 64, 250, 2000);
  const InputPlan input = plan(dataset, {.files = {}, .shuffle = shuffle, .shuffle_block = 16, .shuffle_window = 4});
  std::deque<Loader> loaders;
  for (int rank = 0; rank < 4; ++rank)
    loaders.emplace_back(dataset, input, BatchRequest{kSeed, global_batch, rank, 4, {}});
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int> seen(size, 0);
    for (bool last = false; !last;)
      for (Loader& loader : loaders) {
        const Batch& batch = loader.next();
        CHECK(batch.step.epoch == epoch);
        for (std::size_t i = 0; i < batch.size(); ++i)
          ++seen.at(batch.images[4 * i] + std::size_t{256} * batch.images[4 * i + 1]);
        last = batch.step.last_of_epoch;
      }
    CHECK(seen == std::vector<int>(size, 1));
  }
}

TEST_CASE("planned steps give each rank its units, and every sample once per epoch", "[loader]") {
  const Data data;
  constexpr std::size_t kUnit = 4;
  const std::vector<std::vector<std::size_t>> plans{{1, 1, 1}, {5, 2, 1}, {0, 9, 3}, {5, 1, 2}};
  std::deque<Loader> loaders;
  for (int rank = 0; rank < 3; ++rank) {
    BatchRequest request{kSeed, 12, rank, 3, {}, 1};
    request.unit = kUnit;
    request.round.planned = true;
    Loader& loader = loaders.emplace_back(data.dataset, plan(data.dataset), request);
    loader.plan(plans[0]);
  }
  std::vector<std::size_t> seen;
  bool last = false;
  for (std::size_t step = 0; !last; ++step)
    for (std::size_t rank = 0; rank < 3; ++rank) {
      loaders[rank].plan(plans[(step + 1) % plans.size()]);
      const Range planned = loaders[rank].next_plan().positions;
      const Batch& batch = loaders[rank].next();
      CHECK(batch.step.positions == planned);
      last = batch.step.last_of_epoch;
      if (!last) CHECK(batch.size() == kUnit * plans[step % plans.size()][rank]);
      const auto share = samples(batch);
      seen.insert(seen.end(), share.begin(), share.end());
    }
  const EpochOrder order(kSize, kSeed, 0);
  std::vector<std::size_t> expected;
  for (std::size_t position = 0; position < kSize; ++position) expected.push_back(order.sample(position));
  CHECK(seen == expected);
}

TEST_CASE("a loader resumes at a cursor, on any number of ranks", "[loader]") {
  const Data data;
  const std::vector<std::size_t> whole = epoch(data, 10, 1, {3, 0});
  const std::vector<std::size_t> rest = epoch(data, 10, 4, {3, 40});
  CHECK(std::vector(whole.begin() + 40, whole.end()) == rest);
}

TEST_CASE("a loader continues across epochs", "[loader]") {
  const Data data;
  Loader loader(data.dataset, plan(data.dataset), {5, 50, 0, 1, {}});
  for (std::uint64_t step = 0; step < 30; ++step) {
    const Batch& batch = loader.next();
    CHECK(batch.step.epoch == step / 3);
    CHECK(batch.size() == (step % 3 == 2 ? 3 : 50));
    CHECK(batch.step.last_of_epoch == (step % 3 == 2));
  }
}

TEST_CASE("empty shares are delivered", "[loader]") {
  const Data data;
  Loader loader(data.dataset, plan(data.dataset), {5, 2, 3, 4, {}});
  const Batch& batch = loader.next();
  CHECK(batch.size() == 0);
  CHECK(batch.images.empty());
  CHECK(batch.step.positions == Range{0, 2});
}

TEST_CASE("in a round in steps a rank has the same samples as in its steps", "[loader]") {
  const Data data;
  constexpr std::size_t kBatch = 13, kSteps = 4;  // for 3 ranks
  for (int rank = 0; rank < 3; ++rank) {
    Loader steps(data.dataset, plan(data.dataset), {kSeed, kBatch, rank, 3, {}, 1});
    BatchRequest request{kSeed, kBatch * kSteps, rank, 3, {}, 1};
    request.round.piece_size = kBatch;
    Loader rounds(data.dataset, plan(data.dataset), request);
    for (bool last = false; !last;) {
      const std::vector<std::size_t> round = samples(rounds.next());
      std::vector<std::size_t> expected;
      for (std::size_t step = 0; step < kSteps && !last; ++step) {
        const Batch& batch = steps.next();
        last = batch.step.last_of_epoch;
        const auto share = samples(batch);
        expected.insert(expected.end(), share.begin(), share.end());
      }
      CHECK(round == expected);
    }
  }
}

TEST_CASE("a batch is unchanged until the next call", "[loader]") {
  const Data data;
  Loader loader(data.dataset, plan(data.dataset), {5, 10, 0, 1, {}});
  for (int step = 0; step < 20; ++step) {
    const Batch& batch = loader.next();
    const auto copy = batch.images;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(batch.images == copy);
  }
}

TEST_CASE("batches are reused without allocation", "[loader]") {
  const Data data;
  Loader loader(data.dataset, plan(data.dataset), {5, 50, 0, 1, {}});
  std::set<const std::uint8_t*> memory;
  for (int step = 0; step < 100; ++step) memory.insert(loader.next().images.data());
  CHECK(memory.size() <= 4);
}

TEST_CASE("an error in the reading thread is thrown after the preceding batches, repeatedly", "[loader]") {
  const Data data;
  Loader loader(data.dataset, plan(data.dataset), {5, 10, 0, 1, {0, 50}});
  std::filesystem::resize_file(data.folder / "data.h5", 0);
  const auto read_on = [&] {
    for (;;) loader.next();
  };
  CHECK_THAT(test::error_of(read_on), Catch::Contains("data.h5"));
  CHECK_THAT(test::error_of(read_on), Catch::Contains("data.h5"));
}

TEST_CASE("a cursor of other data makes next() throw Error", "[loader]") {
  const Data data;
  Loader loader(data.dataset, plan(data.dataset), {5, 10, 0, 1, {0, kSize}});
  CHECK_THAT(test::error_of([&] { loader.next(); }), Catch::Contains("made with different data"));
}

TEST_CASE("a loader can be destroyed at any moment", "[loader]") {
  const Data data;
  for (int steps = 0; steps < 50; ++steps) {
    Loader loader(data.dataset, plan(data.dataset), {5, 10, 0, 1, {}});
    for (int step = 0; step < steps % 7; ++step) loader.next();
  }
}

}  // namespace annulus
