#include "src/data/dataset.h"

#include <hdf5.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <thread>

#include "src/data/stored_array.h"
#include "src/io/atomic_file.h"
#include "src/io/hdf5.h"
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
  const std::string text = test::error_of([&] { Dataset({folder / "bad.h5"}, "train"); });
  CHECK_THAT(text, Contains("bad.h5"));
  return text;
}

// A data file whose labels have this HDF5 type.
void write_labels(const std::filesystem::path& file, hid_t type, std::array<std::int64_t, 2> labels = {0, 1}) {
  test::DataFile(2).write(file);
  const hdf5::Handle<H5Fclose> hdf5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
  H5Ldelete(hdf5.id(), "train/labels", H5P_DEFAULT);
  const hsize_t extent = 2;
  const hdf5::Handle<H5Sclose> space(H5Screate_simple(1, &extent, nullptr));
  const hdf5::Handle<H5Dclose> dataset(
      H5Dcreate2(hdf5.id(), "train/labels", type, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Dwrite(dataset.id(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, labels.data());
}

}  // namespace

TEST_CASE("images and labels are read, contiguous or compressed", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(300);
  for (const std::size_t images_per_chunk : {0u, 1u, 7u}) {
    data.images_per_chunk = images_per_chunk;
    data.write(folder / "data.h5");
    const Dataset dataset({folder / "data.h5"}, "train");
    CHECK(dataset.info().size == 300);
    CHECK(dataset.info().height == 2);
    CHECK(dataset.info().width == 2);
    CHECK(dataset.info().channels == 1);
    CHECK(dataset.info().classes == std::vector<std::string>{"even", "odd"});
    CHECK(dataset.info().mean == std::vector{0.5f});
    CHECK(dataset.info().stddev == std::vector{0.25f});
    for (const std::size_t sample : {299u, 0u, 6u, 7u}) {
      CHECK(image(dataset, sample) == Bytes(4, static_cast<std::uint8_t>(sample)));
      CHECK(dataset.label(sample) == static_cast<std::int32_t>(sample % 2));
    }
  }
}

TEST_CASE("images can be read by any thread", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(256);
  for (const std::size_t images_per_chunk : {0u, 10u}) {
    data.images_per_chunk = images_per_chunk;
    data.write(folder / "data.h5");
    const Dataset dataset({folder / "data.h5"}, "train");
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
  Dataset first({folder / "data.h5"}, "train");
  const Dataset second(std::move(first));
  CHECK(image(second, 2) == Bytes(4, 2));
}

TEST_CASE("files other than data files are refused", "[dataset]") {
  const test::TemporaryFolder folder;
  const auto error = [&] { return test::error_of([&] { Dataset({folder / "data.h5"}, "train"); }); };
  CHECK_THAT(error(), Contains("data.h5") && Contains("No such file or directory"));
  test::write_text(folder / "data.h5", "");
  CHECK_THAT(error(), Contains("data.h5") && Contains("not an HDF5 file"));
  test::write_text(folder / "data.h5", "label,pixel1,pixel2");
  CHECK_THAT(error(), Contains("not an HDF5 file"));
  std::filesystem::remove(folder / "data.h5");
  std::filesystem::create_directory(folder / "data.h5");
  CHECK_THAT(error(), Contains("data.h5: a folder, not a regular file"));
  std::filesystem::remove(folder / "data.h5");
  REQUIRE(::mkfifo((folder / "data.h5").c_str(), 0600) == 0);  // it has no writer
  CHECK_THAT(error(), Contains("data.h5: a pipe or device, not a regular file"));
}

TEST_CASE("a split behind an external link is read from the linked file", "[dataset]") {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "other");
  test::DataFile linked(300), linking(300);
  linked.images_per_chunk = GENERATE(0u, 7u);
  for (std::size_t i = 0; i < linked.images.size(); ++i) linked.images[i] = static_cast<std::uint8_t>(255 - i / 4);
  std::ranges::reverse(linked.labels);
  linked.write(folder / "other/linked.h5");
  linking.write(folder / "data.h5");
  const std::string link = GENERATE(as<std::string>{}, "relative", "absolute", "soft", "labels only");
  {
    const hdf5::Handle<H5Fclose> file(H5Fopen((folder / "data.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    const auto link_to = [&](const std::string& target, const char* object, const char* name) {
      REQUIRE(H5Lcreate_external(target.c_str(), object, file.id(), name, H5P_DEFAULT, H5P_DEFAULT) >= 0);
    };
    REQUIRE(H5Lmove(file.id(), "train", H5L_SAME_LOC, "own", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    if (link == "relative") link_to("other/linked.h5", "train", "train");
    if (link == "absolute") link_to((folder / "other/linked.h5").string(), "train", "train");
    if (link == "soft") REQUIRE(H5Lcreate_soft("/own", file.id(), "train", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    if (link == "labels only") {
      REQUIRE(H5Lmove(file.id(), "own", H5L_SAME_LOC, "train", H5P_DEFAULT, H5P_DEFAULT) >= 0);
      REQUIRE(H5Ldelete(file.id(), "train/labels", H5P_DEFAULT) >= 0);
      link_to("other/linked.h5", "train/labels", "train/labels");
    }
  }
  const test::DataFile& images = link == "soft" || link == "labels only" ? linking : linked;
  const test::DataFile& labels = link == "soft" ? linking : linked;
  const Dataset dataset({folder / "data.h5"}, "train");
  for (const std::size_t sample : {0u, 7u, 200u, 299u}) {
    CHECK(image(dataset, sample) == Bytes(4, images.images[4 * sample]));
    CHECK(dataset.label(sample) == labels.labels[sample]);
  }
  std::vector<std::size_t> some{3, 299};
  Bytes pixels(8);
  std::vector<std::int32_t> copied(2);
  if (dataset.copy(some, pixels, copied, {})) CHECK(pixels[4] == images.images[4 * 299]);
}

TEST_CASE("a link to a named pipe is refused", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(2).write(folder / "data.h5");
  {
    const hdf5::Handle<H5Fclose> file(H5Fopen((folder / "data.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    H5Ldelete(file.id(), "train", H5P_DEFAULT);
    REQUIRE(H5Lcreate_external("pipe", "train", file.id(), "train", H5P_DEFAULT, H5P_DEFAULT) >= 0);
  }
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(test::error_of([&] { Dataset({folder / "data.h5"}, "train"); }), Contains("/train: cannot open"));
}

TEST_CASE("a data file with a user block is read", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(300).write(folder / "plain.h5");
  {
    const hdf5::Handle<H5Pclose> creation(H5Pcreate(H5P_FILE_CREATE));
    H5Pset_userblock(creation.id(), 1024);
    const hdf5::Handle<H5Fclose> plain(H5Fopen((folder / "plain.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
    const hdf5::Handle<H5Fclose> file(
        H5Fcreate((folder / "data.h5").c_str(), H5F_ACC_TRUNC, creation.id(), H5P_DEFAULT));
    REQUIRE(H5Ocopy(plain.id(), "train", file.id(), "train", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    for (const char* name : {"classes", "mean", "deviation"}) {
      const hdf5::Handle<H5Aclose> from(H5Aopen(plain.id(), name, H5P_DEFAULT));
      const hdf5::Handle<H5Tclose> type(H5Aget_type(from.id()));
      const hdf5::Handle<H5Sclose> space(H5Aget_space(from.id()));
      const hdf5::Handle<H5Aclose> to(H5Acreate2(file.id(), name, type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT));
      std::array<char, 64> value{};
      REQUIRE(H5Aread(from.id(), type.id(), value.data()) >= 0);
      REQUIRE(H5Awrite(to.id(), type.id(), value.data()) >= 0);
      H5Dvlen_reclaim(type.id(), space.id(), H5P_DEFAULT, value.data());  // the names
    }
  }
  const Dataset dataset({folder / "data.h5"}, "train");
  for (const std::size_t sample : {0u, 299u}) {
    CHECK(image(dataset, sample) == Bytes(4, static_cast<std::uint8_t>(sample)));
    CHECK(dataset.label(sample) == static_cast<std::int32_t>(sample % 2));
  }
}

TEST_CASE("datasets without their elements in the file are refused", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(4).write(folder / "data.h5");
  const auto error_with = [&](const char* name, std::vector<hsize_t> extents, const auto& set) {
    {
      const hdf5::Handle<H5Fclose> file(H5Fopen((folder / "data.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
      REQUIRE(H5Ldelete(file.id(), name, H5P_DEFAULT) >= 0);
      const hdf5::Handle<H5Pclose> properties(H5Pcreate(H5P_DATASET_CREATE));
      set(properties.id());
      const hdf5::Handle<H5Sclose> space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr));
      const hdf5::Handle<H5Dclose> dataset(
          H5Dcreate2(file.id(), name, H5T_STD_U8LE, space.id(), H5P_DEFAULT, properties.id(), H5P_DEFAULT));
      REQUIRE(dataset.id() >= 0);
    }
    return test::error_of([&] { Dataset({folder / "data.h5"}, "train"); });
  };
  const auto contiguous = [](hid_t) {};
  const hsize_t large = hsize_t{1} << 32;
  SECTION("the product does not fit into 64 bits") {
    CHECK_THAT(error_with("train/images", {4, large, large, 1}, contiguous),
               Contains("data.h5") && Contains("/train/images: shape 4x4294967296x4294967296x1") &&
                   Contains("larger than the address space"));
  }
  SECTION("the product wraps to a small number") {
    CHECK_THAT(error_with("train/images", {3, large, large, 1}, contiguous), Contains("larger than the address space"));
  }
  SECTION("never written") {
    CHECK_THAT(error_with("train/images", {hsize_t{1} << 62, 1, 1, 1}, contiguous),
               Contains("/train/images: shape 4611686018427387904x1x1x1, but no element was ever written"));
  }
  SECTION("labels never written") {
    CHECK_THAT(error_with("train/labels", {4}, contiguous), Contains("/train/labels: shape 4, but no element"));
  }
  SECTION("chunks never written") {
    const auto chunked = [](hid_t properties) {
      H5Pset_chunk(properties, 4, std::array<hsize_t, 4>{1, 2, 2, 1}.data());
    };
    CHECK_THAT(error_with("train/images", {4, 2, 2, 1}, chunked),
               Contains("/train/images: shape 4x2x2x1 has 4 chunks, but only 0 were ever written"));
  }
  SECTION("external storage") {
    test::write_text(folder / "pixels", std::string(16, 'x'));
    const auto external = [&](hid_t properties) { H5Pset_external(properties, (folder / "pixels").c_str(), 0, 16); };
    CHECK_THAT(error_with("train/images", {4, 2, 2, 1}, external),
               Contains("/train/images: its elements are in other files (external storage)"));
  }
  SECTION("a virtual dataset") {
    const auto of_others = [&](hid_t properties) {
      const std::array<hsize_t, 4> extents{4, 2, 2, 1};
      const hdf5::Handle<H5Sclose> space(H5Screate_simple(4, extents.data(), nullptr));
      H5Pset_virtual(properties, space.id(), "missing.h5", "train/images", space.id());
    };
    CHECK_THAT(error_with("train/images", {4, 2, 2, 1}, of_others), Contains("(a virtual dataset)"));
  }
}

TEST_CASE("a data file truncated anywhere is refused", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(1000).write(folder / "whole.h5");
  const std::string whole = test::read_text(folder / "whole.h5");
  for (std::size_t size = 0; size < whole.size(); size += 199) {
    test::write_text(folder / "data.h5", whole.substr(0, size));
    CHECK_THAT(test::error_of([&] { Dataset({folder / "data.h5"}, "train"); }), Contains("data.h5"));
  }
}

TEST_CASE("a data file truncated while in use is reported", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(1000).write(folder / "data.h5");
  const Dataset dataset({folder / "data.h5"}, "train");
  std::filesystem::resize_file(folder / "data.h5", 100);
  CHECK_THAT(test::error_of([&] { image(dataset, 999); }), Contains("data.h5") && Contains("train sample 999"));
}

TEST_CASE("several images are copied together, across files", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(3).write(folder / "a.h5");
  test::DataFile data(2000);
  data.write(folder / "b.h5");
  const std::vector<std::size_t> samples{2002, 0, 2, 3, 0, 1500};
  Bytes pixels(4 * samples.size());
  std::vector<std::int32_t> labels(samples.size());
  const auto copy = [&] {
    return Dataset({folder / "a.h5", folder / "b.h5"}, "train").copy(samples, pixels, labels, {});
  };
  CHECK(copy());
  const Dataset dataset({folder / "a.h5", folder / "b.h5"}, "train");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    CHECK(std::ranges::equal(image(dataset, samples[i]), std::span(pixels).subspan(4 * i, 4)));
    CHECK(labels[i] == dataset.label(samples[i]));
  }
  CHECK(dataset.copy({}, {}, {}, {}));
  data.images_per_chunk = 100;
  data.write(folder / "b.h5");
  CHECK_FALSE(copy());
  data.images_per_chunk = 0;
  data.labels[1497] = 2;
  data.write(folder / "b.h5");
  CHECK_FALSE(copy());
}

TEST_CASE("images with a truncated byte are not copied", "[dataset]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "data.h5";
  test::DataFile(5000).write(file);
  const Dataset dataset({file}, "train");
  const std::vector<std::size_t> samples{7, 2500};
  Bytes pixels(8);
  std::vector<std::int32_t> labels(2);
  CHECK(dataset.copy(samples, pixels, labels, {}));
  // After the first truncation, the rest of the last page would read as zeros. After the second, sample 2500 is beyond
  // the only page left.
  for (const std::size_t end : {test::place_of_image(file, 2500) + 3, test::place_of_image(file, 8)}) {
    std::filesystem::resize_file(file, end);
    CHECK_FALSE(dataset.copy(samples, pixels, labels, {}));
    CHECK(image(dataset, 7) == Bytes(4, 7));
    CHECK_THAT(test::error_of([&] { image(dataset, 2500); }), Contains("data.h5: train sample 2500: "));
  }
}

TEST_CASE("all-zero images are copied from a complete file only", "[dataset]") {
  const test::TemporaryFolder folder;
  const auto file = folder / "data.h5";
  test::DataFile data(5000);
  std::ranges::fill(data.images, std::uint8_t{0});
  data.write(file);
  const Dataset dataset({file}, "train");
  const std::vector<std::size_t> samples{7};
  Bytes pixels(4, 1);
  std::vector<std::int32_t> labels(1);
  CHECK(dataset.copy(samples, pixels, labels, {}));
  CHECK(pixels == Bytes(4, 0));
  std::filesystem::resize_file(file, test::place_of_image(file, 5000) - 1);  // its page remains, with zeros
  CHECK_FALSE(dataset.copy(samples, pixels, labels, {}));
}

TEST_CASE("damaged compression is reported", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(1000);
  data.images_per_chunk = 1000;
  data.write(folder / "data.h5");
  std::string content = test::read_text(folder / "data.h5");
  const std::size_t zlib_stream = content.rfind("\x78\x5e");
  REQUIRE(zlib_stream != std::string::npos);
  content.replace(zlib_stream + 2, 20, 20, '\xff');
  test::write_text(folder / "data.h5", content);
  const Dataset dataset({folder / "data.h5"}, "train");
  CHECK_THAT(test::error_of([&] { image(dataset, 5); }),
             Contains("data.h5: train sample 5") && Contains("/train/images"));
}

TEST_CASE("a missing split is named", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(3).write(folder / "data.h5");
  CHECK_THAT(test::error_of([&] { Dataset({folder / "data.h5"}, "test"); }), Contains("data.h5: /test: missing"));
}

TEST_CASE("missing parts of a data file are named", "[dataset]") {
  const test::TemporaryFolder folder;
  hdf5::NewFile file(folder / "data.h5");
  hdf5::Group root = file.root();
  hdf5::Group train = root.create_group("train");
  const Bytes pixels{1, 2};
  const std::vector<std::int64_t> integers{0, 0};
  const auto error = [&] {
    write_atomically(folder / "data.h5", file.image());
    return test::error_of([&] { Dataset({folder / "data.h5"}, "train"); });
  };
  CHECK_THAT(error(), Contains("/train/images: missing"));
  train.write("images", {2, 1, 1, 1}, std::span(pixels));
  CHECK_THAT(error(), Contains("/train/labels: missing"));
  train.write("labels", {2}, std::span(integers));
  CHECK_THAT(error(), Contains("'classes': missing"));
  root.set_strings("classes", std::vector<std::string>{"a"});
  CHECK_THAT(error(), Contains("'mean': missing"));
  root.set_floats("mean", {{0.5f}});
  CHECK_THAT(error(), Contains("'deviation': missing"));
  root.set_floats("deviation", {{0.5f}});
  write_atomically(folder / "data.h5", file.image());
  CHECK(Dataset({folder / "data.h5"}, "train").info().size == 2);
}

TEST_CASE("images of the wrong type or rank are refused", "[dataset]") {
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
    CHECK_THAT(test::error_of([&] { Dataset({folder / "data.h5"}, "train"); }), Contains("must be uint8"));
  }
}

TEST_CASE("labels of the wrong shape are refused", "[dataset]") {
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
}

TEST_CASE("a label without a class is refused when it is read", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(4);
  data.labels = {0, 2, -1, std::int64_t{1} << 32};
  data.write(folder / "data.h5");
  const Dataset dataset({folder / "data.h5"}, "train");
  const auto error = [&](std::size_t sample) { return test::error_of([&] { dataset.label(sample); }); };
  CHECK(dataset.label(0) == 0);
  CHECK_THAT(error(1), Contains("data.h5: train sample 1: label 2, but there are 2 classes"));
  CHECK_THAT(error(2), Contains("sample 2: label -1"));
  CHECK_THAT(error(3), Contains("sample 3: label 4294967296"));
}

TEST_CASE("invalid mean, std and classes are refused", "[dataset]") {
  test::DataFile data(4);
  SECTION("too many means") {
    data.mean = {0.5f, 0.5f, 0.5f};
    CHECK_THAT(error_with(data), Contains("'mean': 3 values for 1 channels"));
  }
  SECTION("no deviation") {
    data.stddev = {};
    CHECK_THAT(error_with(data), Contains("'deviation': 0 values for 1 channels"));
  }
  SECTION("a deviation of zero") {
    data.stddev = {0.0f};
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

TEST_CASE("class names larger than 64 KiB", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(4);
  data.classes.assign(20000, "a name");
  data.write(folder / "data.h5");
  CHECK(Dataset({folder / "data.h5"}, "train").info().classes == data.classes);
}

TEST_CASE("labels may be integers of any size", "[dataset]") {
  const test::TemporaryFolder folder;
  const Bytes pixels{1, 2, 3}, labels{0, 200, 255};
  hdf5::NewFile file(folder / "data.h5");
  hdf5::Group root = file.root();
  root.set_strings("classes", std::vector<std::string>(256, "a"));
  root.set_floats("mean", {{0.5f}});
  root.set_floats("deviation", {{0.5f}});
  hdf5::Group train = root.create_group("train");
  train.write("images", {3, 1, 1, 1}, std::span(pixels));
  train.write("labels", {3}, std::span(labels));
  write_atomically(folder / "data.h5", file.image());
  const Dataset dataset({folder / "data.h5"}, "train");
  for (std::size_t sample = 0; sample < 3; ++sample) CHECK(dataset.label(sample) == labels[sample]);
}

TEST_CASE("integers are equal whether or not cached in memory, within a budget", "[dataset]") {
  constexpr std::size_t kCount = 100;  // more than are read at a time
  const test::TemporaryFolder folder;
  test::DataFile(kCount).write(folder / "data.h5");
  StoredArray labels(hdf5::File(folder / "data.h5").root().group("train").dataset("labels"),
                     std::make_shared<const ReadableFile>(folder / "data.h5"));
  const auto read = [&](std::size_t first) {
    std::vector<std::int64_t> values(kCount - first);
    labels.read_integers(first, values);
    return values;
  };
  const auto all = read(0), some = read(7);
  CHECK(std::ranges::equal(some, std::span(all).subspan(7)));
  std::size_t budget = kCount - 1;
  labels.keep(budget);
  CHECK(budget == kCount - 1);
  budget = 16 * kCount;
  labels.keep(budget);
  CHECK(budget < 16 * kCount);
  std::filesystem::resize_file(folder / "data.h5", 0);
  CHECK(read(0) == all);
  CHECK(read(7) == some);
}

TEST_CASE("labels may be of any integer type and byte order", "[dataset]") {
  const test::TemporaryFolder folder;
  for (const hid_t type : {H5T_STD_I8LE, H5T_STD_U8LE, H5T_STD_I16LE, H5T_STD_U16LE, H5T_STD_I32LE, H5T_STD_U32LE,
                           H5T_STD_I64LE, H5T_STD_U64LE, H5T_STD_I8BE, H5T_STD_I16BE, H5T_STD_I32BE, H5T_STD_U64BE}) {
    write_labels(folder / "data.h5", type);
    const Dataset dataset({folder / "data.h5"}, "train");
    CHECK(dataset.label(0) == 0);
    CHECK(dataset.label(1) == 1);
  }
}

TEST_CASE("integers keep their sign and all their bits", "[dataset]") {
  const test::TemporaryFolder folder;
  const auto check = [&]<class Integer>(hid_t type, Integer) {
    using Limits = std::numeric_limits<Integer>;
    const std::array extremes{static_cast<std::int64_t>(Limits::min()),
                              static_cast<std::int64_t>(std::min<std::uint64_t>(Limits::max(), INT64_MAX))};
    write_labels(folder / "data.h5", type, extremes);
    StoredArray labels(hdf5::File(folder / "data.h5").root().group("train").dataset("labels"),
                       std::make_shared<const ReadableFile>(folder / "data.h5"));
    std::array<std::int64_t, 2> values;
    labels.read_integers(0, values);
    CHECK(values == extremes);
    std::size_t budget = 16;
    labels.keep(budget);
    labels.read_integers(0, values);
    CHECK(values == extremes);
    CHECK(budget == 16 - 2 * sizeof(Integer));
  };
  check(H5T_STD_I8LE, std::int8_t{});
  check(H5T_STD_U8LE, std::uint8_t{});
  check(H5T_STD_I16LE, std::int16_t{});
  check(H5T_STD_U16LE, std::uint16_t{});
  check(H5T_STD_I32LE, std::int32_t{});
  check(H5T_STD_U32LE, std::uint32_t{});
  check(H5T_STD_I64LE, std::int64_t{});
  check(H5T_STD_U64LE, std::uint64_t{});
}

TEST_CASE("integers with padding bits are read; those wider than 8 bytes are refused", "[dataset]") {
  const test::TemporaryFolder folder;
  const hdf5::Handle<H5Tclose> type(H5Tcopy(H5T_STD_I32LE));
  H5Tset_precision(type.id(), 20);
  H5Tset_offset(type.id(), 8);
  write_labels(folder / "data.h5", type.id());
  CHECK(Dataset({folder / "data.h5"}, "train").label(1) == 1);
  const hdf5::Handle<H5Tclose> of_three_bytes(H5Tcopy(H5T_STD_I32LE));
  H5Tset_size(of_three_bytes.id(), 3);
  write_labels(folder / "data.h5", of_three_bytes.id());
  CHECK(Dataset({folder / "data.h5"}, "train").label(1) == 1);
  for (const H5T_order_t order : {H5T_ORDER_LE, H5T_ORDER_BE}) {
    const hdf5::Handle<H5Tclose> wide(H5Tcopy(H5T_STD_I64LE));
    H5Tset_size(wide.id(), 16);
    H5Tset_order(wide.id(), order);
    write_labels(folder / "data.h5", wide.id());
    CHECK_THAT(test::error_of([&] { Dataset({folder / "data.h5"}, "train"); }),
               Contains("/train/labels: integers of 16 bytes; at most 8 are supported"));
  }
}

TEST_CASE("several files form one data set, in the order of their names", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(3).write(folder / "part-2.h5");
  test::DataFile(5).write(folder / "part-1.h5");
  const auto files = data_files({folder / "part-*.h5"});
  CHECK(files == std::vector<std::filesystem::path>{folder / "part-1.h5", folder / "part-2.h5"});
  CHECK(data_files({folder / "part-2.h5", folder / "part-1.h5"}) == files);
  const Dataset dataset(files, "train");
  CHECK(dataset.info().size == 8);
  for (const auto& [sample, value] : {std::pair{0u, 0}, {4u, 4}, {5u, 0}, {7u, 2}}) {
    CHECK(image(dataset, sample) == Bytes(4, static_cast<std::uint8_t>(value)));
    CHECK(dataset.label(sample) == value % 2);
  }
  CHECK_THAT(dataset.place(6), Contains("part-2.h5: train sample 1"));
  CHECK_NOTHROW(dataset.will_need({3, 8}));
}

TEST_CASE("inconsistent files of a data set are refused, naming both", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(3).write(folder / "a.h5");
  test::DataFile other(3);
  const auto error = [&] {
    other.write(folder / "b.h5");
    return test::error_of([&] { Dataset({folder / "a.h5", folder / "b.h5"}, "train"); });
  };
  SECTION("classes") {
    other.classes = {"odd", "even"};
    CHECK_THAT(error(), Contains("a.h5") && Contains("b.h5") && Contains("different classes"));
  }
  SECTION("mean") {
    other.mean = {0.25f};
    CHECK_THAT(error(), Contains("different means"));
  }
  SECTION("deviation") {
    other.stddev = {0.5f};
    CHECK_THAT(error(), Contains("different standard deviations"));
  }
  SECTION("size") {
    other.images_shape = {3, 4, 1, 1};
    CHECK_THAT(error(), Contains("different sizes of images"));
  }
  SECTION("kind") {
    other.encode({{1}, {2}, {3}});
    CHECK_THAT(error(), Contains("decoded and encoded"));
  }
}

TEST_CASE("duplicate and missing data files are named", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile(3).write(folder / "a[1].h5");
  CHECK(data_files({folder / "a[1].h5"}).size() == 1);
  CHECK_THAT(test::error_of([&] { data_files({folder / "a[1].h5", folder / "a[1].h5"}); }), Contains("named twice"));
  CHECK_THAT(test::error_of([&] { Dataset(data_files({folder / "b-*.h5"}), "train"); }),
             Contains("b-*.h5") && Contains("No such file"));
}

TEST_CASE("encoded images are read unchanged", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(3);
  data.encode({{1, 2, 3}, {}, {4}});
  data.write(folder / "data.h5");
  const Dataset dataset({folder / "data.h5"}, "train");
  CHECK(dataset.info().encoded());
  CHECK(dataset.info().size == 3);
  CHECK(dataset.info().channels == 1);
  Bytes bytes;
  dataset.read_encoded(0, bytes);
  CHECK(bytes == Bytes{1, 2, 3});
  dataset.read_encoded(1, bytes);
  CHECK(bytes.empty());
  dataset.read_encoded(2, bytes);
  CHECK(bytes == Bytes{4});
}

TEST_CASE("invalid offsets are reported with their sample", "[dataset]") {
  const test::TemporaryFolder folder;
  test::DataFile data(4);
  data.encode({{1, 2, 3}, {5}, {6}, {4}});
  data.offsets = {0, 3, 2, 99, 5};
  data.write(folder / "data.h5");
  const Dataset dataset({folder / "data.h5"}, "train");
  Bytes bytes;
  const auto error = [&](std::size_t sample) { return test::error_of([&] { dataset.read_encoded(sample, bytes); }); };
  dataset.read_encoded(0, bytes);
  CHECK_THAT(error(1), Contains("data.h5: train sample 1: from byte 3 to byte 2 of 6"));
  CHECK_THAT(error(2), Contains("from byte 2 to byte 99 of 6"));
  CHECK_THAT(error(3), Contains("from byte 99 to byte 5"));
  CHECK_NOTHROW(dataset.will_need({0, 4}));
}

}  // namespace annulus
