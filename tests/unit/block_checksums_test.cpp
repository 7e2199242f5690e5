#include "src/io/block_checksums.h"

#include <hdf5.h>

#include <catch2/catch.hpp>
#include <random>

#include "src/data/dataset.h"
#include "src/io/file_io.h"
#include "src/io/hdf5.h"
#include "tests/unit/data_file.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;

// A data file of 40 images in 10 blocks, with checksums.
void write_with_checksums(const std::filesystem::path& file) {
  test::DataFile data(40);
  data.images_shape = {40, 64, 64, 1};
  data.images.resize(40 * 64 * 64);
  for (std::size_t i = 0; i < data.images.size(); ++i) data.images[i] = static_cast<std::uint8_t>(i * i >> 7);
  data.write(file);
  const std::uint64_t bytes = std::filesystem::file_size(file);
  const std::vector<ByteRange> images = hdf5::File(file).root().group("train").dataset("images").ranges();
  end_checksums(file, bytes, images);
  write_checksums(file, bytes, {3, blocks_of(bytes)});
  write_checksums(file, bytes, {0, 3});
}

// All that a run uses.
std::vector<float> content_of(const std::filesystem::path& file) {
  const Dataset dataset({file}, "train");
  const DatasetInfo& info = dataset.info();
  std::vector<float> all{info.mean.front(), info.stddev.front()};
  for (const std::string& name : info.classes) all.insert(all.end(), name.begin(), name.end());
  std::vector<std::size_t> samples;
  for (std::size_t i = 0; i < info.size; ++i) samples.push_back(i);
  std::vector<std::uint8_t> pixels(info.size * info.image_bytes());
  std::vector<std::int32_t> labels(info.size);
  if (!dataset.copy(samples, pixels, labels, {})) {
    for (const std::size_t i : samples) {
      dataset.read_image(i, std::span(pixels).subspan(i * info.image_bytes(), info.image_bytes()));
      labels[i] = dataset.label(i);
    }
  }
  all.insert(all.end(), pixels.begin(), pixels.end());
  all.insert(all.end(), labels.begin(), labels.end());
  return all;
}

void flip(const std::filesystem::path& file, std::uint64_t byte, int bit) {
  const FileDescriptor open = open_to_write(file), from = open_to_read(file);
  std::array<std::uint8_t, 1> value;
  read_at(from, file, byte, value);
  value[0] ^= static_cast<std::uint8_t>(1 << bit);
  write_at(open, file, byte, value);
}

}  // namespace

TEST_CASE("a flipped bit anywhere in a data file with checksums is found", "[block_checksums]") {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "data.h5";
  write_with_checksums(file);
  const std::vector<float> content = content_of(file);
  std::mt19937 random(1);
  std::size_t found = 0;
  const std::uint64_t size = std::filesystem::file_size(file), metadata = 8192;
  for (std::size_t i = 0; i < 300; ++i) {
    const std::uint64_t byte = random() % (i % 2 == 0 ? size : metadata);
    const int bit = static_cast<int>(random() % 8);
    flip(file, byte, bit);
    try {
      const std::vector<float> read = content_of(file);  // after a flip in the mark at the end
      CHECK(read == content);
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Contains("data.h5: ") && Contains("damaged"));
      ++found;
    }
    flip(file, byte, bit);
  }
  CHECK(found >= 298);
  CHECK(content_of(file) == content);
}

TEST_CASE("damage of a sample is reported with its number", "[block_checksums]") {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "data.h5";
  write_with_checksums(file);
  flip(file, test::place_of_image(file, 21) + 9, 0);
  const Dataset dataset({file}, "train");
  std::vector<std::uint8_t> pixels(64 * 64);
  dataset.read_image(3, pixels);
  CHECK_THAT(test::error_of([&] { dataset.read_image(21, pixels); }),
             Contains("data.h5: train sample 21: damaged: bytes ") && Contains("import again"));
}

TEST_CASE("HDF5 removes the checksums of a file that it changes", "[block_checksums]") {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "data.h5";
  write_with_checksums(file);
  {
    const hdf5::Handle<H5Fclose> open(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    const hdf5::Handle<H5Dclose> labels(H5Dopen2(open.id(), "train/labels", H5P_DEFAULT));
    const std::vector<std::int64_t> ones(40, 1);
    REQUIRE(H5Dwrite(labels.id(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, ones.data()) >= 0);
  }
  CHECK_FALSE(BlockChecksums::find(open_to_read(file), file));
  CHECK(Dataset({file}, "train").label(0) == 1);
}

}  // namespace annulus
