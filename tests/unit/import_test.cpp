#include "src/data/import.h"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "src/data/dataset.h"
#include "tests/unit/error_text.h"
#include "tests/unit/file_size_limit.h"
#include "tests/unit/idx_files.h"

namespace annulus {
namespace {

using Catch::Contains;

// A folder with the source files, and where to import them to.
struct Source {
  Source() {
    std::filesystem::create_directory(folder / "source");
    test::write_idx_source(folder / "source");
  }

  void replace(const std::string& name, const std::string& content) const {
    test::write_text(folder / "source" / name, content);
  }
  std::string error() const {
    return test::error_of([this] { import_data(options); });
  }

  test::TemporaryFolder folder;
  ImportOptions options{folder / "data.h5", "idx", folder / "source", {}};
};

std::string image(const Dataset& dataset, std::size_t sample) {
  std::vector<std::uint8_t> pixels(dataset.info().image_bytes());
  dataset.read_image(sample, pixels);
  return {pixels.begin(), pixels.end()};
}

}  // namespace

TEST_CASE("IDX files become a data file", "[import]") {
  const Source source;
  import_data(source.options);
  const Dataset train(source.options.output, "train");
  CHECK(train.info().size == 4);
  CHECK(train.info().height == 2);
  CHECK(train.info().width == 3);
  CHECK(train.info().channels == 1);
  CHECK(train.info().classes == std::vector<std::string>{"0", "1", "2"});
  CHECK(image(train, 0) == "abcdef");
  CHECK(image(train, 3) == "stuvwx");
  CHECK(train.label(2) == 2);
  const Dataset test(source.options.output, "test");
  CHECK(test.info().size == 2);
  CHECK(image(test, 1) == "GHIJKL");
  CHECK(test.label(0) == 2);
  CHECK(source.folder.files() == 2);
}

TEST_CASE("mean and deviation are those of the training images", "[import]") {
  const Source source;
  import_data(source.options);
  const DatasetInfo info = Dataset(source.options.output, "test").info();
  // 24 successive integers have the variance (24^2 - 1) / 12.
  CHECK(info.mean.at(0) == Approx(('a' + 11.5) / 255));
  CHECK(info.deviation.at(0) == Approx(std::sqrt(575 / 12.0) / 255));
}

TEST_CASE("classes get the names that are given", "[import]") {
  Source source;
  source.options.classes = {"shirt", "trouser", "ankle boot"};
  import_data(source.options);
  CHECK(Dataset(source.options.output, "train").info().classes == source.options.classes);
  source.options.classes.pop_back();
  CHECK_THAT(source.error(), Contains("train-labels") && Contains("sample 2 has label 2, but 2 classes"));
}

TEST_CASE("compressed sources do, and plain ones are preferred", "[import]") {
  const Source source;
  std::filesystem::remove(source.folder / "source/train-labels-idx1-ubyte");
  const std::string labels = test::idx_header({4}) + std::string("\2\2\2\2", 4);
  const gzFile stream = gzopen((source.folder / "source/train-labels-idx1-ubyte.gz").c_str(), "wb");
  gzwrite(stream, labels.data(), static_cast<unsigned>(labels.size()));
  gzclose(stream);
  import_data(source.options);
  CHECK(Dataset(source.options.output, "train").label(0) == 2);
  test::write_idx_source(source.folder / "source");
  import_data(source.options);
  CHECK(Dataset(source.options.output, "train").label(0) == 0);
}

TEST_CASE("sources that do not fit are named", "[import]") {
  const Source source;
  SECTION("missing file") {
    std::filesystem::remove(source.folder / "source/t10k-labels-idx1-ubyte");
    CHECK_THAT(source.error(), Contains("t10k-labels-idx1-ubyte: missing"));
  }
  SECTION("images that are labels") {
    source.replace("train-images-idx3-ubyte", test::idx_header({4}) + "abcd");
    CHECK_THAT(source.error(), Contains("train-images") && Contains("images have 3"));
  }
  SECTION("too few labels") {
    source.replace("train-labels-idx1-ubyte", test::idx_header({3}) + "abc");
    CHECK_THAT(source.error(), Contains("train-labels") && Contains("shape 3 for 4 images"));
  }
  SECTION("no images") {
    source.replace("t10k-images-idx3-ubyte", test::idx_header({0, 2, 3}));
    CHECK_THAT(source.error(), Contains("t10k-images") && Contains("no images"));
  }
  SECTION("test images of another size") {
    source.replace("t10k-images-idx3-ubyte", test::idx_header({2, 3, 3}) + "abcdefghijklmnopqr");
    CHECK_THAT(source.error(), Contains("t10k-images") && Contains("another size"));
  }
  SECTION("constant images") {
    source.replace("train-images-idx3-ubyte", test::idx_header({4, 2, 3}) + std::string(24, 'a'));
    CHECK_THAT(source.error(), Contains("train-images") && Contains("same value"));
  }
  CHECK(source.folder.files() == 1);
}

TEST_CASE("an unknown format lists the known ones", "[import]") {
  Source source;
  source.options.format = "jpeg";
  CHECK_THAT(source.error(), Contains("'jpeg'") && Contains("idx"));
}

TEST_CASE("an import that fails to write leaves the old file", "[import]") {
  const Source source;
  import_data(source.options);
  const std::string before = test::read_text(source.options.output);
  {
    const test::FileSizeLimit limit(500);
    CHECK_THAT(source.error(), Contains("data.h5") && Contains("File too large"));
  }
  CHECK(test::read_text(source.options.output) == before);
  CHECK(source.folder.files() == 2);
}

}  // namespace annulus
