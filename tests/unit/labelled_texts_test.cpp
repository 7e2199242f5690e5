// Data files of texts with labels (FORMAT.md).

#include <catch2/catch.hpp>
#include <numeric>

#include "src/data/data_fingerprint.h"
#include "src/data/loader.h"
#include "src/data/open_samples.h"
#include "src/io/atomic_file.h"
#include "src/io/hdf5.h"
#include "src/train/training_setup.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;

// 5 texts of 4 tokens, 0 to 19, of three classes.
struct TextFile {
  std::vector<std::int64_t> tokens = [] {
    std::vector<std::int64_t> all(20);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }();
  Shape shape{5, 4};
  std::vector<std::int64_t> labels{2, 0, 1, 0, 2};
  std::uint64_t vocabulary = 20;

  void write(const std::filesystem::path& file) const {
    hdf5::NewFile hdf5(file);
    hdf5::Group root = hdf5.root();
    root.set_integer("vocabulary", vocabulary);
    root.set_strings("classes", std::vector<std::string>{"a", "b", "c"});
    hdf5::Group train = root.create_group("train");
    train.write("tokens", shape, std::span<const std::int64_t>(tokens));
    train.write("labels", {labels.size()}, std::span<const std::int64_t>(labels));
    write_atomically(file, hdf5.image());
  }
};

std::string error(const TextFile& data, std::size_t length = 0) {
  const test::TemporaryFolder folder;
  data.write(folder / "texts.h5");
  return test::error_of([&] { open_samples({folder / "texts.h5"}, "train", length); });
}

}  // namespace

TEST_CASE("texts with labels are read as they are stored") {
  const test::TemporaryFolder folder;
  TextFile().write(folder / "texts.h5");
  const auto texts = open_samples({folder / "texts.h5"}, "train", GENERATE(0, 4));
  const DatasetInfo& info = texts->info();
  CHECK((info.size == 5 && info.length == 4 && info.vocabulary == 20 && info.classes.size() == 3));
  CHECK((info.is_text() && !info.predicts_tokens() && !info.encoded() && info.labels == LabelKind::one_class));
  const InputPlan plan = plan_input({}, info, Purpose::training, 1);
  CHECK((!plan.shift_windows && plan.image_bytes() == 16));
  Loader loader(*texts, plan_input({}, info, Purpose::evaluation, 1), {1, 5, 0, 1, {}});
  const Batch& batch = loader.next();
  std::vector<std::int32_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  CHECK(std::ranges::equal(windows_in(batch.images), all));
  CHECK(batch.labels == std::vector<std::int32_t>{2, 0, 1, 0, 2});
  CHECK_THAT(order_of(plan, info), Contains("5 windows of 4 tokens"));
  CHECK(sample_fields("training", *texts)[0].name == "the number of training texts");

  const Task task = task_of(info, plan, "auto");
  CHECK((task.reads_tokens() && task.classes == 3 && task.labels == LabelKind::one_class));
  CHECK(test::error_of([&] { make_model("gpt-tiny", task); }) ==
        "gpt-tiny predicts the next token only: for texts with labels use the network of an ONNX file");
  CHECK(test::error_of([&] { task_of(info, plan, "masked"); }) ==
        "--loss masked is not for these labels, one class for each image: use softmax or binary");
}

TEST_CASE("files of texts with labels that are wrong are refused") {
  TextFile flat, many, beyond;
  flat.shape = {20};
  CHECK_THAT(error(flat),
             Contains("texts.h5: /train/tokens: shape 20: with labels, tokens must be integers, texts x length"));
  many.labels.push_back(1);
  CHECK_THAT(error(many), Contains("/train/labels: shape 6, but there are 5 texts"));
  CHECK(error(TextFile(), 3) == "--length 3: the labelled texts have 4 tokens; remove the option");
  beyond.vocabulary = 19;
  const test::TemporaryFolder folder;
  beyond.write(folder / "texts.h5");
  const auto texts = open_samples({folder / "texts.h5"}, "train", 0);
  std::vector<std::uint8_t> text(16);
  CHECK_NOTHROW(texts->read_image(3, text));
  CHECK_THAT(test::error_of([&] { texts->read_image(4, text); }),
             Contains("texts.h5: train sample 4: token 19 at 3, but the vocabulary has 19"));
}

}  // namespace annulus
