#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>

#include "src/import/collection.h"
#include "src/import/hold_out.h"
#include "src/import/preallocate.h"
#include "src/import/shard_layout.h"
#include "src/io/hdf5.h"
#include "tests/unit/error_text.h"
#include "tests/unit/file_size_limit.h"
#include "tests/unit/image_files.h"
#include "tests/unit/temporary_folder.h"

// The stages between a source and a data file.
namespace annulus {
namespace {

using Catch::Contains;
using Bytes = std::vector<std::uint8_t>;

void write_part(const std::filesystem::path& part, const std::vector<Bytes>& images) {
  PartWriter writer(part);
  ImageStatistics statistics;
  for (std::size_t i = 0; i < images.size(); ++i) {
    writer.add(static_cast<std::int64_t>(i), images[i]);
    statistics.pixels.add(images[i], 1);
    statistics.sizes.add(ImageSize{1, images[i].size()});
  }
  writer.skip("bad \xff name", "reason");
  writer.finish(statistics);
}

ImportJob job_of_two_pieces() {
  ImportJob job;
  job.plan.splits = {{"train", {"0", "1"}}};
  return job;
}

}  // namespace

TEST_CASE("a part holds the written data, and is complete if it exists", "[parts]") {
  const test::TemporaryFolder folder;
  { const PartWriter unfinished(folder / "part"); }
  CHECK(folder.files() == 0);
  CHECK_FALSE(part_exists(folder / "part"));
  const Bytes large(3 << 20, 7);
  write_part(folder / "part", {{1, 2, 3}, large, {4}});
  CHECK(folder.files() == 2);
  REQUIRE(part_exists(folder / "part"));
  const PartIndex index = read_part_index(folder / "part");
  CHECK(index.labels == std::vector<std::int64_t>{0, 1, 2});
  CHECK(index.sizes == std::vector<std::uint64_t>{3, large.size(), 1});
  CHECK(index.skipped.at(0).reason == "reason");
  CHECK(index.statistics.pixels.count == large.size() + 4);
  CHECK(index.statistics.pixels.sums[0] == large.size() * 7 + 10);
  CHECK(index.statistics.pixels.squares[0] == large.size() * 49 + 30);
  CHECK(index.statistics.sizes.largest == ImageSize{1, large.size()});
  CHECK(test::read_text(part_data_file(folder / "part")).size() == index.bytes());
}

TEST_CASE("missing, truncated and non-JSON parts are refused", "[parts]") {
  const test::TemporaryFolder folder;
  const auto error = [&folder] { return test::error_of([&] { collect_parts(job_of_two_pieces(), folder.path()); }); };
  write_part(folder / "train-000000", {{1, 2}});
  CHECK_THAT(error(), Contains("train-000001.json: missing or damaged"));
  test::write_text(folder / "train-000001.json", "{\"labels\": [1]}");
  CHECK_THAT(error(), Contains("train-000001.json: missing or damaged"));
  write_part(folder / "train-000001", {{1, 2}});
  CHECK(collect_parts(job_of_two_pieces(), folder.path()).splits.at(0).first_samples ==
        std::vector<std::uint64_t>{0, 1, 2});
  test::write_text(folder / "train-000001.data", "1");
  CHECK_THAT(error(), Contains("train-000001.data: missing or damaged"));
}

TEST_CASE("a full disk is reported with the part's file", "[parts]") {
  const test::TemporaryFolder folder;
  {
    const test::FileSizeLimit limit(1000);
    CHECK_THAT(test::error_of([&] { write_part(folder / "part", {Bytes(2000, 1)}); }),
               Contains("part.data") && Contains("File too large"));
  }
  CHECK(folder.files() == 0);
}

TEST_CASE("mean and std of each channel are exact", "[parts]") {
  PixelSums sums;
  sums.add(Bytes{0, 10, 7, 255, 20, 7}, 3);
  PixelSums more;
  more.add(Bytes{0, 30, 7, 255, 40, 8}, 3);
  sums.add(more);
  CHECK(mean_of(sums, 3) == std::vector<float>{0.5f, 25.f / 255, 7.25f / 255});
  const std::vector<float> stddev = stddev_of(sums, 3);
  CHECK(stddev[0] == 0.5f);
  CHECK(stddev[1] == Approx(std::sqrt(125.0) / 255));
  CHECK(stddev[2] == Approx(std::sqrt(0.1875) / 255));
  PixelSums constant;
  constant.add(Bytes(100, 255), 1);
  CHECK(mean_of(constant, 1) == std::vector<float>{1});
  CHECK_THAT(test::error_of([&] { stddev_of(constant, 1); }), Contains("same value"));
}

TEST_CASE("positions are a permutation without gaps, in every shard", "[parts]") {
  for (const std::size_t samples : {1, 2, 7, 100}) {
    for (const std::size_t shards : {std::size_t{1}, std::size_t{3}, samples}) {
      for (const bool shuffled : {false, true}) {
        std::vector<std::uint64_t> sizes(samples);
        std::iota(sizes.begin(), sizes.end(), 1);
        const ShardLayout layout(sizes, shuffled, shards);
        std::set<std::size_t> seen;
        for (std::size_t shard = 0; shard < shards; ++shard) {
          std::uint64_t end = 0;
          for (std::size_t p = layout.positions(shard).begin; p < layout.positions(shard).end; ++p) {
            const std::size_t sample = layout.sample_at(p);
            REQUIRE(layout.shard_of(sample) == shard);
            REQUIRE(layout.byte_in_shard(sample) == end);
            end += sizes[sample];
            seen.insert(sample);
            if (!shuffled) REQUIRE(sample == p);
          }
          CHECK(layout.bytes_in(shard) == end);
        }
        CHECK(seen.size() == samples);
      }
    }
  }
}

TEST_CASE("shuffling mixes sorted samples", "[parts]") {
  const std::vector<std::uint64_t> sizes(1000, 1);
  const ShardLayout layout(sizes, true, 1);
  std::size_t of_first_half = 0;
  for (std::size_t position = 0; position < 100; ++position) of_first_half += layout.sample_at(position) < 500;
  CHECK(of_first_half > 35);
  CHECK(of_first_half < 65);
}

TEST_CASE("a share of each class is held out, but never all of it", "[parts]") {
  std::vector<std::int32_t> labels;
  for (std::int32_t i = 0; i < 200; ++i) labels.push_back(i % 2);  // 100 each of two classes, and a few of others
  labels.insert(labels.end(), {3, 4, 4, 4});
  const auto count = [&](const std::vector<std::uint8_t>& held_out, std::int32_t label) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < labels.size(); ++i) found += labels[i] == label ? held_out[i] : 0;
    return found;
  };
  const std::vector<std::uint8_t> tenth = hold_out(labels, 0.1), half = hold_out(labels, 0.5);
  CHECK(std::vector{count(tenth, 0), count(tenth, 1), count(tenth, 3), count(tenth, 4)} ==
        std::vector<std::size_t>{10, 10, 0, 0});
  CHECK(std::vector{count(half, 0), count(half, 1), count(half, 3), count(half, 4)} ==
        std::vector<std::size_t>{50, 50, 0, 2});
  for (std::size_t i = 0; i < labels.size(); ++i) CHECK(tenth[i] <= half[i]);  // a larger share adds samples
  CHECK(hold_out(labels, 0.1) == tenth);
  // Not the first ones, and not the same ones of both classes.
  CHECK(std::accumulate(tenth.begin(), tenth.begin() + 100, 0) < 16);
  bool equal = true;
  for (std::size_t i = 0; i < 200; i += 2) equal = equal && tenth[i] == tenth[i + 1];
  CHECK_FALSE(equal);
}

TEST_CASE("held-out samples come last, in shards of their own", "[parts]") {
  const std::vector<std::uint64_t> sizes{3, 1, 4, 1, 5, 9};
  const std::vector<std::uint8_t> held_out{0, 1, 0, 0, 1, 0};
  const ShardLayout layout(sizes, false, 2, held_out);
  REQUIRE(layout.shards() == 4);
  std::vector<std::size_t> order;
  for (std::size_t position = 0; position < sizes.size(); ++position) order.push_back(layout.sample_at(position));
  CHECK(order == std::vector<std::size_t>{0, 2, 3, 5, 1, 4});
  CHECK(layout.positions(1).begin == 2);
  CHECK(layout.positions(2).end == 5);
  CHECK(layout.shard_of(5) == 1);
  CHECK(layout.byte_in_shard(5) == 1);
  CHECK(layout.shard_of(4) == 3);
  CHECK(layout.byte_in_shard(4) == 0);
  CHECK(layout.bytes_in(3) == 5);
  // The others keep the order that they have without held-out samples.
  const ShardLayout shuffled(sizes, true, 1, held_out), before(sizes, true, 1);
  std::vector<std::size_t> rest, expected;
  for (std::size_t position = 0; position < 4; ++position) rest.push_back(shuffled.sample_at(position));
  for (std::size_t position = 0; position < sizes.size(); ++position)
    if (const std::size_t sample = before.sample_at(position); held_out[sample] == 0) expected.push_back(sample);
  CHECK(rest == expected);
  CHECK(ShardLayout(sizes, false, 2, std::vector<std::uint8_t>(6)).shards() == 2);
}

TEST_CASE("a preallocated data file has space at the returned positions", "[parts]") {
  const test::TemporaryFolder folder;
  const DataFileHeader header{{"a", "b"}, {0.5f}, {0.25f}};
  std::vector<SplitSpace> spaces{{"train", 2, 5, 0, 0, 0, {}}, {"test", 0, 0, 0, 0, 0, {}}};
  AtomicFile file = preallocate(folder / "x.h5", header, {true, {}, 1}, spaces);
  CHECK(folder.files() == 1);
  file.write_at(spaces[0].images.chunks.at(0), Bytes{1, 2, 3, 4, 5});
  file.commit();
  const hdf5::Group root = hdf5::File(folder / "x.h5").root();
  CHECK(root.names() == std::vector<std::string>{"train"});
  CHECK(root.floats("deviation") == std::vector<float>{0.25f});
  const hdf5::Dataset bytes = root.group("train").dataset("bytes");
  CHECK(bytes.offset() == spaces[0].images.chunks.at(0));
  CHECK(bytes.read<std::int64_t>() == std::vector<std::int64_t>{1, 2, 3, 4, 5});
  CHECK(root.group("train").dataset("offsets").shape() == Shape{3});
  CHECK(std::filesystem::file_size(folder / "x.h5") < 20000);
}

TEST_CASE("a data file that does not fit on the disk is refused, and leaves no file", "[parts]") {
  const test::TemporaryFolder folder;
  std::vector<SplitSpace> spaces{{"train", 1000, 1000000, 0, 0, 0, {}}};
  {
    const test::FileSizeLimit limit(100000);
    CHECK_THAT(test::error_of([&] {
                 preallocate(folder / "x.h5", {{"a"}, {0}, {1}}, {true, {}, 1}, spaces);
               }),
               Contains("x.h5: cannot write: File too large"));
  }
  CHECK(folder.files() == 0);
}

TEST_CASE("encoded images are kept, and their pixels enter the mean and std", "[parts]") {
  const Image picture = test::picture({6, 8}, 3);
  const test::Bytes png = test::png_of(picture);
  ImageConverter converter({true, {}, 3});
  const auto stored = converter.convert(png);
  CHECK(test::Bytes(stored.begin(), stored.end()) == png);
  PixelSums expected;
  expected.add(picture.pixels, 3);
  CHECK(converter.statistics().pixels.sums == expected.sums);
  CHECK(converter.statistics().sizes.smallest == ImageSize{6, 8});
  CHECK_THAT(test::error_of([&] { converter.convert({}); }), Contains("empty"));
  CHECK_THAT(test::error_of([&] { converter.convert(std::span(png).first(60)); }), Contains("PNG"));
  CHECK(converter.statistics().pixels.count == 48);
}

TEST_CASE("pixels are resized to cover the size and centre-cropped", "[parts]") {
  // Columns 0 to 7 have the value 10 x column; at half the size, 4 wide, the middle two cover columns 2 to 5.
  Image picture;
  picture.reshape({4, 8}, 1);
  for (std::size_t i = 0; i < picture.pixels.size(); ++i) picture.pixels[i] = static_cast<std::uint8_t>(10 * (i % 8));
  ImageConverter converter({false, ImageSize{2, 2}, 1});
  const test::Bytes png = test::png_of(picture);
  const auto stored = converter.convert(png);
  REQUIRE(stored.size() == 4);
  CHECK(std::abs(stored[0] - 25) <= 4);
  CHECK(std::abs(stored[1] - 45) <= 4);
  CHECK(converter.statistics().sizes.largest == ImageSize{2, 2});
}

TEST_CASE("an impossible label is refused, naming its piece", "[parts]") {
  ImportJob job;
  job.source = "data";
  job.plan.splits = {{"train", {"a.tar", "b.tar"}}, {"test", {"c.tar"}}};
  Collection collection;
  collection.splits.resize(2);
  collection.splits[0].name = "train";
  collection.splits[0].first_samples = {0, 2, 4};
  collection.splits[0].labels = {0, 9, 3, 255};
  collection.splits[1].name = "test";
  collection.splits[1].first_samples = {0, 1};
  collection.splits[1].labels = {1};
  CHECK_NOTHROW(expect_sensible_labels(
      job, collection));  // labels are often bytes, and a part of a data set may have any of them
  collection.splits[0].labels[2] = 1'000'000;
  CHECK_THAT(test::error_of([&] { expect_sensible_labels(job, collection); }),
             Contains("data: label 1000000 in b.tar (train images), but there are only 5 images in total"));
  collection.splits[0].labels[2] = 3;
  collection.splits[1].labels[0] = 256;
  CHECK_THAT(test::error_of([&] { expect_sensible_labels(job, collection); }), Contains("label 256 in c.tar (test"));
}

}  // namespace annulus
