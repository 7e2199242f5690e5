#include "src/checkpoint.h"

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <limits>

#include "src/atomic_file.h"
#include "src/data/hdf5.h"
#include "tests/unit/error_text.h"
#include "tests/unit/file_size_limit.h"
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
  checkpoint.step = 1234;
  checkpoint.cursor = {7, 4096};
  checkpoint.order = "5000 images, --shuffle global";
  checkpoint.image = {24, 32};
  checkpoint.data = {.height = 28,
                     .width = 30,
                     .channels = 2,
                     .classes = {"cat", "Hündin"},
                     .mean = {0.5f, 0.25f},
                     .deviation = {0.125f, 1.0f / 3}};
  checkpoint.summing = "3 ranks, ring, buckets of 1 MiB";
  checkpoint.buckets = {.bytes = 1 << 20, .deferred = 0.25};
  checkpoint.ranks = 3;
  checkpoint.crossover = 65'536;
  checkpoint.tuned_for_ranks = 3;
  checkpoint.loss_scaling = {.scale = 4096, .good_steps = 17};
  checkpoint.score = {.correct = 90, .count = 100};
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
  CHECK(one.step == other.step);
  CHECK(one.cursor == other.cursor);
  CHECK(one.order == other.order);
  CHECK(one.image == other.image);
  CHECK(one.data.height == other.data.height);
  CHECK(one.data.width == other.data.width);
  CHECK(one.data.channels == other.data.channels);
  CHECK(one.data.classes == other.data.classes);
  CHECK(bits(one.data.mean) == bits(other.data.mean));
  CHECK(bits(one.data.deviation) == bits(other.data.deviation));
  CHECK(one.summing == other.summing);
  CHECK(one.buckets == other.buckets);
  CHECK(one.ranks == other.ranks);
  CHECK(one.crossover == other.crossover);
  CHECK(one.tuned_for_ranks == other.tuned_for_ranks);
  REQUIRE(one.loss_scaling.has_value() == other.loss_scaling.has_value());
  if (one.loss_scaling) {
    CHECK(one.loss_scaling->scale == other.loss_scaling->scale);
    CHECK(one.loss_scaling->good_steps == other.loss_scaling->good_steps);
  }
  CHECK(one.score == other.score);
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

std::string error_of_reading(const std::filesystem::path& file) {
  return test::error_of([&] { read_checkpoint(file); });
}

}  // namespace

TEST_CASE("a checkpoint comes back bit by bit, in the same order", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "run.h5", example());
  check_equal(read_checkpoint(folder / "run.h5"), example());
  CHECK(folder.files() == 1);
}

TEST_CASE("equal checkpoints are equal files", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "a.h5", example());
  write_checkpoint(folder / "b.h5", example());
  CHECK(test::read_text(folder / "a.h5") == test::read_text(folder / "b.h5"));
}

TEST_CASE("a checkpoint without parameters", "[checkpoint]") {
  const test::TemporaryFolder folder;
  write_checkpoint(folder / "run.h5", {});
  check_equal(read_checkpoint(folder / "run.h5"), {});
}

TEST_CASE("values that do not fill their shape are an error", "[checkpoint]") {
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

TEST_CASE("a folder that does not exist is an error", "[checkpoint]") {
  const test::TemporaryFolder folder;
  CHECK_THAT(test::error_of([&] { write_checkpoint(folder / "none/run.h5", example()); }),
             Contains("none/run.h5") && Contains("No such file or directory"));
}

TEST_CASE("a checkpoint that is missing or cut off anywhere is named", "[checkpoint]") {
  const test::TemporaryFolder folder;
  CHECK_THAT(error_of_reading(folder / "run.h5"), Contains("run.h5") && Contains("No such file or directory"));
  write_checkpoint(folder / "whole.h5", example());
  const std::string whole = test::read_text(folder / "whole.h5");
  for (std::size_t size = 0; size < whole.size(); size += 97) {
    test::write_text(folder / "run.h5", whole.substr(0, size));
    CHECK_THAT(error_of_reading(folder / "run.h5"), Contains("run.h5"));
  }
}

TEST_CASE("whatever byte of a checkpoint is altered, that is found", "[checkpoint]") {
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

TEST_CASE("the score is read by itself", "[checkpoint]") {
  const test::TemporaryFolder folder;
  Checkpoint checkpoint = example();
  write_checkpoint(folder / "with.h5", checkpoint);
  checkpoint.score.reset();
  write_checkpoint(folder / "without.h5", checkpoint);
  test::write_text(folder / "damaged.h5", "damaged");
  CHECK(read_score(folder / "with.h5") == Score{90, 100});
  CHECK_FALSE(read_score(folder / "without.h5"));
  CHECK_FALSE(read_score(folder / "damaged.h5"));
  CHECK_FALSE(read_score(folder / "none.h5"));
}

TEST_CASE("a checkpoint of version 1 has no checksums and is read", "[checkpoint]") {
  const test::TemporaryFolder folder;
  hdf5::NewFile file(folder / "run.h5");
  hdf5::Group root = file.root();
  root.set_string("format", "annulus checkpoint");
  root.set_integer("version", 1);
  for (const char* name : {"model", "configuration"}) root.set_string(name, "x");
  for (const char* name : {"seed", "step", "epoch", "position"}) root.set_integer(name, 7);
  const std::array<float, 2> values{1, 2}, velocity{3, 4};
  root.create_group("parameters").write("weight", {2}, std::span<const float>(values));
  root.create_group("velocity").write("weight", {2}, std::span<const float>(velocity));
  write_atomically(folder / "run.h5", file.image());
  Checkpoint expected;
  expected.model = expected.configuration = "x";
  expected.seed = expected.step = 7;
  expected.cursor = {7, 7};
  expected.parameters = {{"weight", {2}, {1, 2}, {{3, 4}}}};
  check_equal(read_checkpoint(folder / "run.h5"), expected);
}

TEST_CASE("HDF5 files that are no checkpoints of ours are named", "[checkpoint]") {
  const test::TemporaryFolder folder;
  hdf5::NewFile file(folder / "run.h5");
  hdf5::Group root = file.root();
  const std::array<float, 3> three{1, 2, 3};
  const std::span<const float> floats(three);
  const std::array<std::int64_t, 1> one{1};
  const std::span<const std::int64_t> integers(one);
  const auto error = [&] {
    write_atomically(folder / "run.h5", file.image());
    return error_of_reading(folder / "run.h5");
  };
  SECTION("foreign") {
    CHECK_THAT(error(), Contains("not a checkpoint"));
  }
  SECTION("another format") {
    root.set_string("format", "keras");
    CHECK_THAT(error(), Contains("not a checkpoint"));
  }
  SECTION("from the future") {
    root.set_string("format", "annulus checkpoint");
    root.set_integer("version", 3);
    CHECK_THAT(error(), Contains("run.h5") && Contains("version 3") && Contains("newer"));
    CHECK_THROWS_AS(read_checkpoint(folder / "run.h5"), NewerCheckpoint);
  }
  SECTION("parts missing") {
    root.set_string("format", "annulus checkpoint");
    root.set_integer("version", 1);
    for (const char* name : {"model", "configuration"}) {
      CHECK_THAT(error(), Contains(std::string("'") + name + "': missing"));
      root.set_string(name, "x");
    }
    for (const char* name : {"seed", "step", "epoch", "position"}) {
      CHECK_THAT(error(), Contains(std::string("'") + name + "': missing"));
      root.set_integer(name, 0);
    }
    CHECK_THAT(error(), Contains("/parameters: missing"));
    hdf5::Group parameters = root.create_group("parameters");
    CHECK_THAT(error(), Contains("/velocity: missing"));
    hdf5::Group velocities = root.create_group("velocity");
    parameters.write("weight", {2}, floats.first(2));
    velocities.write("weight", {3}, floats);
    CHECK_THAT(error(), Contains("/velocity/weight: shape 3, but the parameter's is 2"));
  }
  SECTION("not float32") {
    root.set_string("format", "annulus checkpoint");
    root.set_integer("version", 1);
    for (const char* name : {"model", "configuration"}) root.set_string(name, "x");
    for (const char* name : {"seed", "step", "epoch", "position"}) root.set_integer(name, 0);
    root.create_group("velocity");
    root.create_group("parameters").write("weight", {1}, integers);
    CHECK_THAT(error(), Contains("/parameters/weight: must hold float32"));
  }
}

}  // namespace annulus
