#include "src/checkpoint/checkpoint.h"

#include <hdf5.h>
#include <sys/stat.h>

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "src/io/atomic_file.h"
#include "src/io/hash.h"
#include "src/io/hdf5.h"
#include "tests/unit/error_text.h"
#include "tests/unit/file_size_limit.h"
#include "tests/unit/score_of.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

Checkpoint example() {
  const float quiet = std::bit_cast<float>(0x7fc12345u), signaling = std::bit_cast<float>(0xff812345u);
  const float smallest = std::numeric_limits<float>::denorm_min(), infinite = std::numeric_limits<float>::infinity();
  Checkpoint checkpoint;
  checkpoint.model = "lenet";
  checkpoint.optimizer = "adamw";
  checkpoint.configuration = "[run]\nname = \"größer\"\n";
  checkpoint.seed = 0xfedcba9876543210;
  std::uint64_t number = 1;
  for (const RunStateField& field : kRunStateFields) field.set(checkpoint.run, number++);
  checkpoint.run.score.emplace().count = number++;
  for (const Measure measure : kMeasures) (*checkpoint.run.score)[measure] = static_cast<double>(number++);
  checkpoint.order = "5000 images, --shuffle global";
  checkpoint.image = {24, 32};
  checkpoint.data = {.height = 28,
                     .width = 30,
                     .channels = 2,
                     .classes = {"cat", "Hündin"},
                     .mean = {0.5f, 0.25f},
                     .stddev = {0.125f, 1.0f / 3}};
  checkpoint.samples = {{"the number of training images", "5000"}, {"a hash of the training labels", "a=b"}};
  checkpoint.summing = "3 ranks, ring, buckets of 1 MiB";
  checkpoint.parameters = {
      {"z.weight",
       {2, 3},
       {0.1f, -0.0f, smallest, quiet, signaling, -infinite},
       {{1, 2, 3, 4, quiet, -0.0f}, {6, 5, 4, 3, 2, quiet}},
       {0.5f, -0.0f, smallest, quiet, 7, 8}},
      {"a.bias", {2}, {1.5f, -2.5f}, {{0.5f, 0.25f}, {1, 2}}, {3, 4}},
      {"m.running_mean", {1}, {3.0f}, {}, {2.5f}},
      {"scalar", {}, {42.0f}, {}, {41.0f}},
  };
  return checkpoint;
}

void check_equal(const Checkpoint& one, const Checkpoint& other) {
  CHECK(one.model == other.model);
  CHECK(one.optimizer == other.optimizer);
  CHECK(one.configuration == other.configuration);
  CHECK(one.seed == other.seed);
  for (const RunStateField& field : kRunStateFields) {
    INFO(field.name);
    CHECK(field.get(one.run) == field.get(other.run));
  }
  CHECK(one.run.score == other.run.score);
  CHECK(one.order == other.order);
  CHECK(one.image == other.image);
  CHECK(one.data.height == other.data.height);
  CHECK(one.data.width == other.data.width);
  CHECK(one.data.channels == other.data.channels);
  CHECK(one.data.classes == other.data.classes);
  CHECK(bits(one.data.mean) == bits(other.data.mean));
  CHECK(bits(one.data.stddev) == bits(other.data.stddev));
  CHECK(one.samples == other.samples);
  CHECK(one.summing == other.summing);
  REQUIRE(one.parameters.size() == other.parameters.size());
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    CHECK(one.parameters[i].name == other.parameters[i].name);
    CHECK(one.parameters[i].shape == other.parameters[i].shape);
    CHECK(bits(one.parameters[i].values) == bits(other.parameters[i].values));
    REQUIRE(one.parameters[i].states.size() == other.parameters[i].states.size());
    for (std::size_t k = 0; k < one.parameters[i].states.size(); ++k)
      CHECK(bits(one.parameters[i].states[k]) == bits(other.parameters[i].states[k]));
    CHECK(bits(one.parameters[i].average) == bits(other.parameters[i].average));
  }
}

// HDF5's image with a checkpoint's checksum.
std::vector<std::byte> sealed(std::vector<std::byte> image) {
  Hash hash;
  hash.add(std::span<const std::byte>(image));
  const std::uint64_t checksum = hash.value();
  for (const char c : std::string_view("sealed 2")) image.push_back(static_cast<std::byte>(c));
  const auto bytes = std::as_bytes(std::span(&checksum, 1));
  image.insert(image.end(), bytes.begin(), bytes.end());
  return image;
}

// Changes a checkpoint's HDF5 part and updates its checksum.
void edit(const std::filesystem::path& file, const std::function<void(hid_t)>& change) {
  std::string content = test::read_text(file);
  test::write_text(file, content.substr(0, content.size() - 16));
  {
    const hdf5::Handle<H5Fclose> opened(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
    change(opened.id());
  }
  content = test::read_text(file);
  const auto bytes = std::as_bytes(std::span(content));
  write_atomically(file, sealed({bytes.begin(), bytes.end()}));
}

std::string error_of_reading(const std::filesystem::path& file) {
  return test::error_of([&] { read_checkpoint(file); });
}

}  // namespace

TEST_CASE("a checkpoint round-trips bit-identically, in the same order", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "run.h5", example());
  check_equal(read_checkpoint(folder / "run.h5"), example());
  CHECK(folder.files() == 1);
}

TEST_CASE("the order of a checkpoint of an earlier version has the options of today", "[checkpoint]") {
  const test::TemporaryFolder folder;
  Checkpoint checkpoint = example();
  checkpoint.order = "500 images, --shuffle block --shuffle-block 64 --shuffle-window 16";
  write_checkpoint(folder / "run.h5", checkpoint);
  CHECK(read_checkpoint(folder / "run.h5").order == "500 images, --shuffle block,size=64,window=16");
}

TEST_CASE("a checkpoint has the tokenizer of its text", "[checkpoint]") {
  const test::TemporaryFolder folder;
  Checkpoint checkpoint;
  checkpoint.data.labels = LabelKind::tokens;
  checkpoint.data.vocabulary = 50257;
  checkpoint.data.length = 1024;
  checkpoint.data.tokenizer = std::string(1000000, 'x');
  write_checkpoint(folder / "c.h5", checkpoint);
  Checkpoint read = read_checkpoint(folder / "c.h5");
  CHECK(read.data.is_text());
  CHECK((read.data.vocabulary == 50257 && read.data.length == 1024));
  CHECK(read.data.tokenizer == checkpoint.data.tokenizer);
  expect_usable(read, arrays_of(read), "c.h5");
  read.data.length = 0;
  CHECK_THROWS_WITH(expect_usable(read, arrays_of(read), "c.h5"),
                    "c.h5: attributes 'vocabulary' and 'length': 50257 and 0");
}

TEST_CASE("equal checkpoints give identical files", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "a.h5", example());
  write_checkpoint(folder / "b.h5", example());
  CHECK(test::read_text(folder / "a.h5") == test::read_text(folder / "b.h5"));
}

TEST_CASE("a checkpoint without parameters", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "run.h5", Checkpoint{});
  check_equal(read_checkpoint(folder / "run.h5"), {});
}

TEST_CASE("values that do not match their shape are an error", "[checkpoint]") {
  const test::TemporaryFolder folder;
  Checkpoint checkpoint = example();
  checkpoint.parameters[1].states[0].pop_back();
  CHECK_THAT(test::error_of([&] { write_checkpoint(folder / "run.h5", checkpoint); }),
             Contains("/velocity/a.bias: 1 values for shape 2"));
  CHECK(folder.files() == 0);
}

TEST_CASE("the old checkpoint survives a failed write", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "run.h5", example());
  Checkpoint larger = example();
  larger.parameters.push_back({"large", {100000}, std::vector<float>(100000), {}, std::vector<float>(100000)});
  for (const rlim_t bytes : {0, 1000, 10000, 300000}) {
    const test::FileSizeLimit limit(bytes);
    CHECK_THAT(test::error_of([&] { write_checkpoint(folder / "run.h5", larger); }),
               Contains("run.h5") && Contains("File too large"));
    check_equal(read_checkpoint(folder / "run.h5"), example());
    CHECK(folder.files() == 1);
  }
  write_checkpoint(folder / "run.h5", larger);
  check_equal(read_checkpoint(folder / "run.h5"), larger);
}

TEST_CASE("a checkpoint of many arrays needs no more space than is reserved", "[checkpoint]") {
  const test::TemporaryFolder folder;
  Checkpoint checkpoint;
  write_checkpoint(folder / "none.h5", checkpoint);
  for (const int count : {1, 10, 3000}) {
    CAPTURE(count);
    checkpoint.parameters.clear();
    for (int number = 0; number < count; ++number)
      checkpoint.parameters.push_back({fmt::format("a.rather.long.name.{}", number), {1}, {1}, {{2}, {3}}, {4}});
    write_checkpoint(folder / "some.h5", checkpoint);
    const ArraySource arrays = arrays_of(checkpoint);
    CHECK(std::filesystem::file_size(folder / "some.h5") - std::filesystem::file_size(folder / "none.h5") <
          arrays.values * sizeof(float) + hdf5::FileToExtend::space_for(arrays.arrays, 5));
  }
}

TEST_CASE("a missing folder is an error", "[checkpoint]") {
  const test::TemporaryFolder folder;
  CHECK_THAT(test::error_of([&] { write_checkpoint(folder / "none/run.h5", example()); }),
             Contains("none/run.h5") && Contains("No such file or directory"));
}

TEST_CASE("a missing or truncated checkpoint is named", "[checkpoint]") {
  const test::TemporaryFolder folder;
  CHECK_THAT(error_of_reading(folder / "run.h5"), Contains("run.h5") && Contains("No such file or directory"));
  REQUIRE(::mkfifo((folder / "run.h5").c_str(), 0600) == 0);  // it has no writer
  CHECK_THAT(error_of_reading(folder / "run.h5"), Contains("run.h5: a pipe or device, not a regular file"));
  std::filesystem::remove(folder / "run.h5");
  write_checkpoint(folder / "whole.h5", example());
  const std::string whole = test::read_text(folder / "whole.h5");
  for (std::size_t size = 0; size < whole.size(); size += 97) {
    test::write_text(folder / "run.h5", whole.substr(0, size));
    CHECK_THAT(error_of_reading(folder / "run.h5"), Contains("run.h5"));
  }
}

TEST_CASE("corruption of any byte of a checkpoint is detected", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "whole.h5", example());
  const std::string whole = test::read_text(folder / "whole.h5");
  std::vector<std::size_t> positions;
  for (std::size_t position = 0; position < whole.size() - 16; position += 101) positions.push_back(position);
  for (std::size_t position = whole.size() - 16; position < whole.size(); ++position) positions.push_back(position);
  for (const std::size_t position : positions) {
    CAPTURE(position);
    std::string altered = whole;
    altered[position] ^= 0x21;
    test::write_text(folder / "run.h5", altered);
    CHECK_THAT(error_of_reading(folder / "run.h5"), Contains("run.h5") && Contains("damaged"));
  }
}

TEST_CASE("the score can be read alone", "[checkpoint]") {
  const test::TemporaryFolder folder;
  Checkpoint checkpoint = example();
  checkpoint.run.score = test::score_of(100, {{Measure::accuracy, 90}});
  write_checkpoint(folder / "with.h5", checkpoint);
  checkpoint.run.score.reset();
  write_checkpoint(folder / "without.h5", checkpoint);
  test::write_text(folder / "damaged.h5", "damaged");
  CHECK(read_score(folder / "with.h5") == test::score_of(100, {{Measure::accuracy, 90}}));
  CHECK_FALSE(read_score(folder / "without.h5"));
  checkpoint.run.score = test::score_of(100, {{Measure::loss, 0.25}, {Measure::mae, 1.5}});
  write_checkpoint(folder / "values.h5", checkpoint);
  CHECK(read_score(folder / "values.h5") == checkpoint.run.score);
  checkpoint.run.score = test::score_of(100, {{Measure::loss, 0.25}});
  write_checkpoint(folder / "nothing.h5", checkpoint);
  CHECK_THAT(error_of_reading(folder / "nothing.h5"), Contains("'count' without the number of 'correct'"));
  CHECK_FALSE(read_score(folder / "damaged.h5"));
  CHECK_FALSE(read_score(folder / "none.h5"));
}

TEST_CASE("a checkpoint of another version is refused, with or without a checksum", "[checkpoint]") {
  const test::TemporaryFolder folder;
  for (const std::uint64_t version : {0u, 3u, 5u}) {
    hdf5::NewFile file(folder / "run.h5");
    hdf5::Group root = file.root();
    root.set_string("format", "annulus checkpoint");
    root.set_integer("version", version);
    for (const auto& image : {file.image(), sealed(file.image())}) {
      write_atomically(folder / "run.h5", image);
      CHECK_THROWS_AS(read_checkpoint(folder / "run.h5"), UnknownVersion);
      CHECK_THAT(error_of_reading(folder / "run.h5"),
                 Contains("run.h5") && Contains(fmt::format("version {}, but this program reads version 4", version)));
    }
  }
}

TEST_CASE("a checkpoint with invalid numbers is refused, naming them", "[checkpoint]") {
  Checkpoint good;
  good.data = {.classes = {"a"}, .mean = {0.5f}, .stddev = {0.25f}};
  good.parameters = {{"weight", {2}, {1, 2}, {{3, 4}, {5, 6}}, {7, 8}}};
  CHECK_NOTHROW(expect_usable(good, arrays_of(good), "run.h5"));
  const auto error_with = [&](const auto& change) {
    Checkpoint bad = good;
    change(bad);
    return test::error_of([&] { expect_usable(bad, arrays_of(bad), "run.h5"); });
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
  CHECK_THAT(error_with([](auto& c) { c.data.classes.clear(); }), Contains("run.h5: attribute 'classes': empty"));
  CHECK_THAT(error_with([&](auto& c) { c.data.mean = {nan}; }), Contains("'mean': not a finite number"));
  CHECK_THAT(error_with([](auto& c) { c.data.mean = {1, 2}; }), Contains("'mean' and 'deviation': 2 and 1 values"));
  for (const float stddev : {0.0f, -1.0f, nan, infinite})
    CHECK_THAT(error_with([&](auto& c) { c.data.stddev = {stddev}; }), Contains("'deviation': "));
  CHECK_THAT(error_with([&](auto& c) { c.parameters[0].values[1] = nan; }),
             Contains("run.h5: parameters/weight holds values that are not finite"));
  CHECK_THAT(error_with([&](auto& c) { c.parameters[0].states[1][0] = infinite; }), Contains("second_moment/weight"));
  CHECK_THAT(error_with([&](auto& c) { c.parameters[0].average[0] = -infinite; }), Contains("average/weight"));
}

TEST_CASE("a tensor larger than its file is refused before memory is allocated", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "run.h5", example());
  edit(folder / "run.h5", [](hid_t file) {
    REQUIRE(H5Ldelete(file, "parameters/a.bias", H5P_DEFAULT) >= 0);
    const hsize_t extent = hsize_t{1} << 40;
    const hdf5::Handle<H5Sclose> space(H5Screate_simple(1, &extent, nullptr));
    const hdf5::Handle<H5Dclose> dataset(
        H5Dcreate2(file, "parameters/a.bias", H5T_NATIVE_FLOAT, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    REQUIRE(dataset.id() >= 0);
  });
  CHECK_THAT(error_of_reading(folder / "run.h5"),
             Contains("/parameters/a.bias: shape 1099511627776, but no element was ever written"));
}

TEST_CASE("HDF5 files other than checkpoints are refused", "[checkpoint]") {
  const test::TemporaryFolder folder;
  hdf5::NewFile file(folder / "run.h5");
  hdf5::Group root = file.root();
  const std::array<std::int64_t, 1> one{1};
  const std::span<const std::int64_t> integers(one);
  const auto error = [&] {
    write_atomically(folder / "run.h5", sealed(file.image()));
    return error_of_reading(folder / "run.h5");
  };
  SECTION("foreign") {
    CHECK_THAT(error(), Contains("not a checkpoint"));
  }
  SECTION("another format") {
    root.set_string("format", "keras");
    CHECK_THAT(error(), Contains("not a checkpoint"));
  }
  SECTION("without a checksum") {
    root.set_string("format", "annulus checkpoint");
    root.set_integer("version", 4);
    write_atomically(folder / "run.h5", file.image());
    CHECK_THAT(error_of_reading(folder / "run.h5"), Contains("its checksum is missing"));
  }
  SECTION("missing parts") {
    root.set_string("format", "annulus checkpoint");
    root.set_integer("version", 4);
    const auto expect = [&](const std::string& name) { CHECK_THAT(error(), Contains("'" + name + "': missing")); };
    for (const char* name : {"model", "optimizer", "configuration"}) {
      expect(name);
      root.set_string(name, "x");
    }
    expect("seed");
    root.set_integer("seed", 0);
    for (const RunStateField& field : kRunStateFields) {
      if (!field.required) continue;
      expect(field.name);
      root.set_integer(field.name, 0);
    }
    expect("order");
    root.set_string("order", "x");
    for (const char* name : {"image_height", "image_width"}) {
      expect(name);
      root.set_integer(name, 0);
    }
    expect("classes");
    root.set_strings("classes", {});
    for (const char* name : {"mean", "deviation"}) {
      expect(name);
      root.set_floats(name, {});
    }
    for (const char* name : {"data_height", "data_width"}) {
      expect(name);
      root.set_integer(name, 0);
    }
    expect("samples");
    root.set_strings("samples", {});
    expect("summing");
    root.set_string("summing", "x");
    CHECK_THAT(error(), Contains("/parameters: missing"));
    hdf5::Group parameters = root.create_group("parameters");
    CHECK_THAT(error(), Contains("/velocity: missing"));
    root.create_group("velocity");
    parameters.write("integers", {1}, integers);
    CHECK_THAT(error(), Contains("/parameters/integers: must hold float32"));
  }
  SECTION("another shape") {
    write_checkpoint(folder / "shape.h5", example());
    edit(folder / "shape.h5", [](hid_t opened) {
      REQUIRE(H5Ldelete(opened, "velocity/a.bias", H5P_DEFAULT) >= 0);
      REQUIRE(H5Lmove(opened, "velocity/z.weight", H5L_SAME_LOC, "velocity/a.bias", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    });
    CHECK_THAT(error_of_reading(folder / "shape.h5"),
               Contains("/velocity/a.bias: shape 2x3, but the parameter's is 2"));
  }
}

}  // namespace annulus
