#include "src/data/dataset.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <thread>

#include "src/atomic_file.h"
#include "src/data/hdf5.h"
#include "tests/unit/data_file.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
using Bytes = std::vector<std::uint8_t>;

Bytes image(const Dataset& dataset, std::size_t sample) {
  Bytes pixels(dataset.info().image_bytes());
  dataset.read_image(sample, pixels);
  return pixels;
}

std::string error_with(const test::DataFile& data) {
  const test::TemporaryFolder folder;
  data.write(folder / "bad.h5");
  const std::string text = test::error_of([&] { Dataset(folder / "bad.h5", "train"); });
  CHECK_THAT(text, Contains("bad.h5"));
  return text;
}

}  // namespace

TEST_CASE("images and labels are read, contiguous or compressed", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(300);
  for (const std::size_t images_per_chunk : {0u, 1u, 7u}) {
    data.images_per_chunk = images_per_chunk;
    data.write(folder / "data.h5");
    const Dataset dataset(folder / "data.h5", "train");
    CHECK(dataset.info().size == 300);
    CHECK(dataset.info().height == 2);
    CHECK(dataset.info().width == 2);
    CHECK(dataset.info().channels == 1);
    CHECK(dataset.info().classes == std::vector<std::string>{"even", "odd"});
    CHECK(dataset.info().mean == std::vector{0.5f});
    CHECK(dataset.info().deviation == std::vector{0.25f});
    for (const std::size_t sample : {299u, 0u, 6u, 7u}) {
      CHECK(image(dataset, sample) == Bytes(4, static_cast<std::uint8_t>(sample)));
      CHECK(dataset.label(sample) == static_cast<std::int32_t>(sample % 2));
    }
  }
}

TEST_CASE("any thread reads images", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(256);
  for (const std::size_t images_per_chunk : {0u, 10u}) {
    data.images_per_chunk = images_per_chunk;
    data.write(folder / "data.h5");
    const Dataset dataset(folder / "data.h5", "train");
    std::array<bool, 4> right{};
    {
      std::vector<std::jthread> threads;
      for (std::size_t thread = 0; thread < right.size(); ++thread) {
        threads.emplace_back([&, thread] {
          bool all = true;
          for (std::size_t i = 0; i < 256; ++i) all &= image(dataset, i) == Bytes(4, static_cast<std::uint8_t>(i));
          right[thread] = all;
        });
      }
    }
    CHECK(right == std::array{true, true, true, true});
  }
}

TEST_CASE("a dataset can be moved", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(3).write(folder / "data.h5");
  Dataset first(folder / "data.h5", "train");
  const Dataset second(std::move(first));
  CHECK(image(second, 2) == Bytes(4, 2));
}

TEST_CASE("files that are no data files are named", "[dataset]") {
  const test::TemporaryFolder folder;
  const auto error = [&] { return test::error_of([&] { Dataset(folder / "data.h5", "train"); }); };
  CHECK_THAT(error(), Contains("data.h5") && Contains("No such file or directory"));
  test::write_text(folder / "data.h5", "");
  CHECK_THAT(error(), Contains("data.h5") && Contains("not an HDF5 file"));
  test::write_text(folder / "data.h5", "label,pixel1,pixel2");
  CHECK_THAT(error(), Contains("not an HDF5 file"));
  std::filesystem::remove(folder / "data.h5");
  std::filesystem::create_directory(folder / "data.h5");
  CHECK_THAT(error(), Contains("not an HDF5 file"));
}

TEST_CASE("a truncated data file is named wherever it ends", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(1000).write(folder / "whole.h5");
  const std::string whole = test::read_text(folder / "whole.h5");
  for (std::size_t size = 0; size < whole.size(); size += 199) {
    test::write_text(folder / "data.h5", whole.substr(0, size));
    CHECK_THAT(test::error_of([&] { Dataset(folder / "data.h5", "train"); }), Contains("data.h5"));
  }
}

TEST_CASE("a data file cut off while in use is named", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(1000).write(folder / "data.h5");
  const Dataset dataset(folder / "data.h5", "train");
  std::filesystem::resize_file(folder / "data.h5", 100);
  CHECK_THAT(test::error_of([&] { image(dataset, 999); }), Contains("data.h5") && Contains("image 999"));
}

TEST_CASE("damaged compression is named", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(1000);
  data.images_per_chunk = 1000;
  data.write(folder / "data.h5");
  std::string content = test::read_text(folder / "data.h5");
  const std::size_t zlib_stream = content.rfind("\x78\x5e");
  REQUIRE(zlib_stream != std::string::npos);
  content.replace(zlib_stream + 2, 20, 20, '\xff');
  test::write_text(folder / "data.h5", content);
  const Dataset dataset(folder / "data.h5", "train");
  CHECK_THAT(test::error_of([&] { image(dataset, 5); }), Contains("data.h5: /train/images"));
}

TEST_CASE("a split that is not there is named", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(3).write(folder / "data.h5");
  CHECK_THAT(test::error_of([&] { Dataset(folder / "data.h5", "test"); }), Contains("data.h5: /test: missing"));
}

TEST_CASE("missing parts of a data file are named", "[dataset]") {
  const test::TemporaryFolder folder;
  hdf5::NewFile file(folder / "data.h5");
  hdf5::Group root = file.root();
  hdf5::Group train = root.create_group("train");
  const Bytes pixels{1, 2};
  const std::vector<float> floats{0, 0};
  const auto error = [&] {
    write_atomically(folder / "data.h5", file.image());
    return test::error_of([&] { Dataset(folder / "data.h5", "train"); });
  };
  CHECK_THAT(error(), Contains("/train/images: missing"));
  train.write("images", {2, 1, 1, 1}, std::span(pixels));
  CHECK_THAT(error(), Contains("'classes': missing"));
  root.set_strings("classes", std::vector<std::string>{"a"});
  CHECK_THAT(error(), Contains("'mean': missing"));
  root.set_floats("mean", {{0.5f}});
  CHECK_THAT(error(), Contains("'deviation': missing"));
  root.set_floats("deviation", {{0.5f}});
  CHECK_THAT(error(), Contains("/train/labels: missing"));
  train.write("labels", {2}, std::span(floats));
  CHECK_THAT(error(), Contains("/train/labels: must hold integers"));
}

TEST_CASE("images of another type or rank are named", "[dataset]") {
  test::DataFile data(4);
  SECTION("rank") {
    data.images_shape = {4, 2, 2};
    CHECK_THAT(error_with(data), Contains("/train/images: must be uint8 images x height x width x channels"));
  }
  SECTION("none") {
    data.images_shape = {0, 2, 2, 1};
    data.images.clear();
    data.labels_shape = {0};
    data.labels.clear();
    CHECK_THAT(error_with(data), Contains("/train/images: no images"));
  }
  SECTION("type") {
    const test::TemporaryFolder folder;
    const std::vector<float> floats{1};
    hdf5::NewFile file(folder / "data.h5");
    file.root().create_group("train").write("images", {1, 1, 1, 1}, std::span(floats));
    write_atomically(folder / "data.h5", file.image());
    CHECK_THAT(test::error_of([&] { Dataset(folder / "data.h5", "train"); }), Contains("must be uint8"));
  }
}

TEST_CASE("labels that do not fit are named", "[dataset]") {
  test::DataFile data(4);
  SECTION("too few") {
    data.labels_shape = {3};
    data.labels.pop_back();
    CHECK_THAT(error_with(data), Contains("/train/labels: shape 3, but there are 4 images"));
  }
  SECTION("rank") {
    data.labels_shape = {4, 1};
    CHECK_THAT(error_with(data), Contains("/train/labels: shape 4x1"));
  }
  SECTION("too large") {
    data.labels[2] = 2;
    CHECK_THAT(error_with(data), Contains("sample 2 has label 2, but there are 2 classes"));
  }
  SECTION("negative") {
    data.labels[3] = -1;
    CHECK_THAT(error_with(data), Contains("sample 3 has label -1"));
  }
  SECTION("beyond 32 bits") {
    data.labels[0] = std::int64_t{1} << 32;
    CHECK_THAT(error_with(data), Contains("sample 0 has label 4294967296"));
  }
}

TEST_CASE("mean, deviation and classes that do not fit are named", "[dataset]") {
  test::DataFile data(4);
  SECTION("too many means") {
    data.mean = {0.5f, 0.5f, 0.5f};
    CHECK_THAT(error_with(data), Contains("'mean': 3 values for 1 channels"));
  }
  SECTION("no deviation") {
    data.deviation = {};
    CHECK_THAT(error_with(data), Contains("'deviation': 0 values for 1 channels"));
  }
  SECTION("a deviation of zero") {
    data.deviation = {0.0f};
    CHECK_THAT(error_with(data), Contains("'deviation': 0 is not above 0"));
  }
  SECTION("not a number") {
    data.mean = {std::nanf("")};
    CHECK_THAT(error_with(data), Contains("'mean': not a finite number"));
  }
  SECTION("no classes") {
    data.classes = {};
    CHECK_THAT(error_with(data), Contains("'classes': empty"));
  }
}

TEST_CASE("class names beyond what an old HDF5 attribute holds", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(4);
  data.classes.assign(20000, "a name");
  data.write(folder / "data.h5");
  CHECK(Dataset(folder / "data.h5", "train").info().classes == data.classes);
}

}  // namespace annulus
