#include "src/import/import.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "src/data/dataset.h"
#include "tests/unit/error_text.h"
#include "tests/unit/file_size_limit.h"
#include "tests/unit/image_files.h"
#include "tests/unit/tar_file.h"
#include "tests/unit/temporary_folder.h"

using namespace annulus;

namespace {

using Catch::Contains;

// A gray image of 2x3 pixels.
struct Picture {
  std::string pixels;
  int label;
};

void write_split(const std::filesystem::path& archive, const std::vector<Picture>& pictures) {
  std::vector<std::pair<std::string, std::string>> members;
  for (const Picture& picture : pictures) {
    Image image;
    image.reshape({2, 3}, 1);
    std::ranges::copy(picture.pixels, image.pixels.begin());
    const test::Bytes png = test::png_of(image);
    const std::string key = std::to_string(members.size() / 2);
    members.emplace_back(key + ".png", std::string(png.begin(), png.end()));
    members.emplace_back(key + ".cls", std::to_string(picture.label));
  }
  test::write_tar(archive, members);
}

const std::vector<Picture> kTrain{{"abcdef", 0}, {"ghijkl", 1}, {"mnopqr", 2}, {"stuvwx", 0}};
const std::vector<Picture> kTest{{"ABCDEF", 2}, {"GHIJKL", 1}};

// A folder shared by all ranks, with a source in it and the import options. All ranks work on it, but only rank 0
// modifies it.
struct Source {
  explicit Source(const World& ranks) : world(ranks) {
    if (world.root()) {
      for (const char* split : {"train", "test"}) std::filesystem::create_directories(own / "source" / split);
      write_split(own / "source/train/0.tar", kTrain);
      write_split(own / "source/test/0.tar", kTest);
    }
    std::string path = own.path().string();  // the same length on all ranks
    world.broadcast(std::as_writable_bytes(std::span(path)));
    folder = path;
    options.output = folder / "data.h5";
    options.source = folder / "source";
    options.format = "tar";
    options.store = "pixels";
    options.size = ImageSize{2, 3};
    options.channels = 1;
    options.on_bad_sample = "fail";
  }
  ~Source() { world.barrier(); }

  template <class Change>
  void change(Change change) const {
    world.barrier();
    if (world.root()) change();
    world.barrier();
  }
  void replace(const std::string& split, const std::vector<Picture>& pictures) const {
    change([&] { write_split(options.source / split / "0.tar", pictures); });
  }
  int import() const {
    return import_data(world, options, [](const std::string&) {});
  }
  std::string error() const {
    return test::error_of([this] { import(); });
  }
  // Lists the files beside the source, while no rank modifies them.
  std::size_t files() const {
    world.barrier();
    const auto count = std::distance(std::filesystem::directory_iterator(folder), {});
    world.barrier();
    return static_cast<std::size_t>(count) - 1;
  }
  // The same on all ranks, because none still imports.
  bool has_parts() const {
    world.barrier();
    const bool found = std::filesystem::exists(folder / "data.h5.parts");
    world.barrier();
    return found;
  }

  const World& world;
  test::TemporaryFolder own;
  std::filesystem::path folder;
  ImportOptions options;
};

std::string image(const Dataset& dataset, std::size_t sample) {
  std::vector<std::uint8_t> pixels(dataset.info().image_bytes());
  dataset.read_image(sample, pixels);
  return {pixels.begin(), pixels.end()};
}

}  // namespace

TEST_CASE("archives become a data file") {
  const World world;
  const Source source(world);
  CHECK(source.import() == 0);
  const Dataset train({source.options.output}, "train");
  CHECK(train.info().size == 4);
  CHECK(train.info().height == 2);
  CHECK(train.info().width == 3);
  CHECK(train.info().channels == 1);
  CHECK(train.info().classes == std::vector<std::string>{"0", "1", "2"});
  CHECK(image(train, 0) == "abcdef");
  CHECK(image(train, 3) == "stuvwx");
  CHECK(train.label(2) == 2);
  const Dataset test({source.options.output}, "test");
  CHECK(test.info().size == 2);
  CHECK(image(test, 1) == "GHIJKL");
  CHECK(test.label(0) == 2);
  CHECK(source.files() == 1);
}

TEST_CASE("mean and std are those of the training images unless given") {
  const World world;
  Source source(world);
  source.import();
  const DatasetInfo info = Dataset({source.options.output}, "test").info();
  // 24 successive integers have the variance (24^2 - 1) / 12.
  CHECK(info.mean.at(0) == Approx(('a' + 11.5) / 255));
  CHECK(info.stddev.at(0) == Approx(std::sqrt(575 / 12.0) / 255));
  source.options.mean = {0.25f};
  source.options.stddev = {0.5f};
  source.change([] {});
  source.import();
  CHECK(Dataset({source.options.output}, "test").info().mean == std::vector<float>{0.25f});
  CHECK(Dataset({source.options.output}, "test").info().stddev == std::vector<float>{0.5f});
  source.options.mean = {0.25f, 0.25f, 0.25f};
  CHECK_THAT(source.error(), Contains("--mean: 3 values for 1 channels"));
  source.options.mean = {std::nanf("")};
  CHECK_THAT(source.error(), Contains("--mean: nan is not a finite number"));
  source.options.mean = {};
  source.options.stddev = {INFINITY};
  CHECK_THAT(source.error(), Contains("--std: inf is not a finite number"));
}

TEST_CASE("class names can be given") {
  const World world;
  Source source(world);
  source.options.classes = {"shirt", "trouser", "ankle boot"};
  source.import();
  CHECK(Dataset({source.options.output}, "train").info().classes == source.options.classes);
  source.options.classes.pop_back();
  CHECK_THAT(source.error(), Contains("0.tar") && Contains("has label 2, which none of the 2 classes has"));
  source.options.on_bad_sample = "skip";
  source.change([&] { std::filesystem::remove_all(source.folder / "data.h5.parts"); });
  source.import();
  CHECK(Dataset({source.options.output}, "train").info().size == 3);
  CHECK_THAT(test::read_text(source.folder / "data.h5.skipped.txt"),
             Contains("train/0.tar: 2\thas label 2") && Contains("test/0.tar"));
}

TEST_CASE("shards hold consecutive samples") {
  const World world;
  Source source(world);
  source.options.shards = 3;
  source.import();
  std::string all;
  for (const std::string shard : {"0", "1", "2"}) {
    const Dataset train({source.folder / ("data-0000" + shard + "-of-00003.h5")}, "train");
    for (std::size_t i = 0; i < train.info().size; ++i) all += image(train, i) + std::to_string(train.label(i)) + " ";
  }
  CHECK(all == "abcdef0 ghijkl1 mnopqr2 stuvwx0 ");
  CHECK(image(Dataset({source.folder / "data-00001-of-00003.h5"}, "test"), 0) == "GHIJKL");
  CHECK_THAT(test::error_of([&] { Dataset({source.folder / "data-00002-of-00003.h5"}, "test"); }),
             Contains("/test: missing"));
  CHECK(source.files() == 3);
  source.options.shards = 2;
  CHECK_THAT(source.error(), Contains("-of-00003.h5: a shard of another import"));
  source.change([&] {
    for (const std::string shard : {"0", "1", "2"})
      std::filesystem::remove(source.folder / ("data-0000" + shard + "-of-00003.h5"));
  });
  source.options.shards = 5;
  CHECK_THAT(source.error(), Contains("--shards 5: there are only 4 training images"));
}

TEST_CASE("invalid sources are refused, and leave no file") {
  const World world;
  Source source(world);
  SECTION("no archive") {
    source.change([&] { std::filesystem::remove(source.options.source / "train/0.tar"); });
    CHECK_THAT(source.error(), Contains("none of training images"));
  }
  SECTION("no such folder") {
    source.options.source = source.options.source / "none";
    CHECK_THAT(source.error(), Contains("none: no such file or folder"));
  }
  CHECK(source.files() == 0);
}

TEST_CASE("constant images are rejected unless --std is given") {
  const World world;
  Source source(world);
  source.replace("train", {{"aaaaaa", 0}, {"aaaaaa", 1}, {"aaaaaa", 2}});
  const std::string error = source.error();
  CHECK_THAT(error, Contains("same value"));
  if (world.root()) CHECK_THAT(error, Contains("2 of 2 pieces are kept in"));
  source.options.stddev = {1};
  source.import();
  CHECK(Dataset({source.options.output}, "train").info().mean.at(0) == Approx('a' / 255.0));
  CHECK(source.files() == 1);
}

TEST_CASE("parts are reused by the same import only") {
  const World world;
  Source source(world);
  source.replace("train", {{"abcdef", 0}, {"ghijkl", -1}});
  CHECK_THAT(source.error(), Contains("train/0.tar: 1: has label -1"));
  source.options.size = ImageSize{1, 1};
  if (source.has_parts()) {  // if another rank finished the test images
    CHECK_THAT(source.error(), Contains("with another --size"));
  }
  source.options.size = ImageSize{2, 3};
  source.replace("train", kTrain);
  CHECK(source.import() == 0);
  CHECK(image(Dataset({source.options.output}, "train"), 3) == "stuvwx");
}

TEST_CASE("an import that fails to write leaves the old file") {
  const World world;
  const Source source(world);
  source.import();
  source.change([] {});
  const std::string before = test::read_text(source.options.output);
  {
    const test::FileSizeLimit limit(700);
    CHECK_THAT(source.error(), Contains("data.h5") && Contains("File too large"));
  }
  CHECK(test::read_text(source.options.output) == before);
}
