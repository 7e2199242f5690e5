#include "src/data/token_dataset.h"

#include <catch2/catch.hpp>
#include <deque>
#include <numeric>
#include <set>

#include "src/data/data_fingerprint.h"
#include "src/data/loader.h"
#include "src/data/open_samples.h"
#include "tests/unit/data_file.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/token_file.h"

namespace annulus {
namespace {

using Catch::Contains;
using Tokens = std::vector<std::int32_t>;

constexpr std::uint64_t kSeed = 5;

struct Text {
  explicit Text(const test::TokenFile& data, std::size_t length = 4) : dataset(write(data), "train", length) {}

  std::vector<std::filesystem::path> write(const test::TokenFile& data) const {
    data.write(folder / "text.h5");
    return {folder / "text.h5"};
  }

  test::TemporaryFolder folder;
  TokenDataset dataset;
};

Tokens tokens_of(std::span<const std::uint8_t> bytes) {
  const auto* const begin = reinterpret_cast<const std::int32_t*>(bytes.data());
  return {begin, begin + bytes.size() / sizeof *begin};
}

Tokens window(const Samples& dataset, std::size_t sample) {
  std::vector<std::uint8_t> bytes(dataset.info().image_bytes());
  dataset.read_image(sample, bytes);
  return tokens_of(bytes);
}

Tokens shifted(const Samples& dataset, std::size_t sample, std::size_t shift) {
  std::vector<std::uint8_t> bytes(dataset.info().image_bytes());
  dataset.read_shifted(sample, shift, bytes);
  return tokens_of(bytes);
}

// `count` tokens from `first` on, as TokenFile numbers them.
Tokens numbers(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::string error(const test::TokenFile& data) {
  return test::error_of([&] { Text text(data); });
}

// All ranks' windows, step by step, from a position to the end of its epoch.
std::vector<Tokens> epoch(const Samples& dataset, Purpose purpose, int ranks, Cursor start, std::size_t workers = 1) {
  DataOptions options;
  options.workers = workers;
  const InputPlan plan = plan_input(options, dataset.info(), purpose, 1);
  std::deque<Loader> loaders;
  for (int rank = 0; rank < ranks; ++rank)
    loaders.emplace_back(dataset, plan, BatchRequest{kSeed, 7, rank, ranks, start});
  std::vector<Tokens> windows;
  for (bool last = false; !last;) {
    for (Loader& loader : loaders) {
      const Batch& batch = loader.next();
      CHECK(batch.images.size() == batch.size() * plan.image_bytes());
      CHECK(std::ranges::count(batch.labels, 0) == std::ssize(batch.labels));
      for (std::size_t i = 0; i < batch.size(); ++i)
        windows.push_back(tokens_of(std::span(batch.images).subspan(i * plan.image_bytes(), plan.image_bytes())));
      last = batch.step.last_of_epoch;
    }
  }
  return windows;
}

}  // namespace

TEST_CASE("windows of text overlap by one token, and the last one is padded", "[token_dataset]") {
  test::TokenFile data(11);
  data.bytes_each = GENERATE(1u, 2u, 4u);
  data.is_compressed = GENERATE(false, true);
  data.vocabulary = 11;
  const Text text(data);
  const DatasetInfo& info = text.dataset.info();
  CHECK(info.size == 3);
  CHECK((info.labels == LabelKind::tokens && info.is_text() && !info.encoded()));
  CHECK((info.vocabulary == 11 && info.length == 4 && info.tokens == 11 && info.text_bytes == 0));
  CHECK(info.image_bytes() == 5 * sizeof(std::int32_t));
  CHECK(window(text.dataset, 0) == Tokens{0, 1, 2, 3, 4});
  CHECK(window(text.dataset, 1) == Tokens{4, 5, 6, 7, 8});
  CHECK(window(text.dataset, 2) == Tokens{8, 9, 10, -1, -1});
  CHECK(text.dataset.label(2) == 0);
  text.dataset.will_need({0, 3});
}

TEST_CASE("text that ends with a window needs no padding", "[token_dataset]") {
  CHECK(Text(test::TokenFile(9)).dataset.info().size == 2);
  CHECK(Text(test::TokenFile(10)).dataset.info().size == 3);
  CHECK(Text(test::TokenFile(2)).dataset.info().size == 1);
  CHECK(window(Text(test::TokenFile(2)).dataset, 0) == Tokens{0, 1, -1, -1, -1});
}

TEST_CASE("shifted windows end at the end of the text at the latest", "[token_dataset]") {
  const Text text(test::TokenFile(11));
  CHECK(shifted(text.dataset, 0, 3) == numbers(3, 5));
  CHECK(shifted(text.dataset, 1, 3) == numbers(6, 5));
  CHECK(shifted(text.dataset, 2, 0) == numbers(6, 5));
  CHECK(shifted(text.dataset, 2, 3) == numbers(6, 5));
  CHECK(shifted(Text(test::TokenFile(3)).dataset, 0, 2) == Tokens{0, 1, 2, -1, -1});
}

TEST_CASE("files of text are concatenated, and windows do not cross them", "[token_dataset]") {
  const test::TemporaryFolder folder;
  test::TokenFile first(6), second(100);
  first.tokenizer = second.tokenizer = "{}";
  first.text_bytes = 20;
  second.text_bytes = 300;
  first.write(folder / "a.h5");
  second.write(folder / "b.h5");
  const TokenDataset dataset({folder / "a.h5", folder / "b.h5"}, "train", 4);
  CHECK(dataset.info().size == 2 + 25);
  CHECK(dataset.info().tokens == 106);
  CHECK(dataset.info().text_bytes == 320);
  CHECK(dataset.info().tokenizer == "{}");
  CHECK(window(dataset, 1) == Tokens{4, 5, -1, -1, -1});
  CHECK(window(dataset, 2) == numbers(0, 5));
  CHECK(shifted(dataset, 1, 3) == numbers(1, 5));
  CHECK_THAT(dataset.place(3), Contains("b.h5: train tokens from 4 on"));
  dataset.will_need({0, 27});

  second.vocabulary = 2000;
  second.write(folder / "b.h5");
  const auto open = [&] { TokenDataset({folder / "a.h5", folder / "b.h5"}, "train", 4); };
  CHECK_THAT(test::error_of(open), Contains("different vocabularies"));
  second.vocabulary = 1000;
  second.tokenizer = "another";
  second.write(folder / "b.h5");
  CHECK_THAT(test::error_of(open), Contains("different tokenizers"));
}

TEST_CASE("a data set is opened as its files are", "[token_dataset]") {
  const test::TemporaryFolder folder;
  test::TokenFile(1000).write(folder / "text.h5");
  test::DataFile(5).write(folder / "images.h5");
  CHECK(open_samples({folder / "text.h5"}, "train", 10)->info().size == 100);
  CHECK(open_samples({folder / "text.h5"}, "train", 0)->info().length == kDefaultLength);
  CHECK(open_samples({folder / "images.h5"}, "train", 0)->info().labels == LabelKind::one_class);
  CHECK_THAT(test::error_of([&] {
               open_samples({folder / "text.h5", folder / "images.h5"}, "train", 0);
             }),
             Contains("images.h5: /train/tokens: missing"));
  CHECK_THAT(test::error_of([&] { open_samples({folder / "text.h5"}, "test", 0); }),
             Contains("no test split, but train (see --split)"));
  CHECK_THAT(test::error_of([&] { open_samples({folder / "none.h5"}, "train", 0); }), Contains("none.h5"));
}

TEST_CASE("files of text that violate the format are refused", "[token_dataset]") {
  test::TokenFile data(11);
  SECTION("documents that do not end at the end") {
    data.documents.back() = 12;
    CHECK_THAT(error(data), Contains("/train/documents: from 0 to 12, but there are 11 tokens"));
  }
  SECTION("documents that do not begin at the beginning") {
    data.documents.front() = 1;
    CHECK_THAT(error(data), Contains("/train/documents: from 1 to 11"));
  }
  SECTION("no documents") {
    data.documents.pop_back();
    CHECK_THAT(error(data), Contains("/train/documents: must hold"));
  }
  SECTION("no vocabulary") {
    data.vocabulary = 0;
    CHECK_THAT(error(data), Contains("attribute 'vocabulary': 0 tokens"));
  }
  SECTION("one token") {
    data.tokens.resize(1);
    CHECK_THAT(error(data), Contains("/train/tokens: 1 tokens; at least 2"));
  }
}

TEST_CASE("a token out of range is a bad sample", "[token_dataset]") {
  test::TokenFile data(20);
  data.bytes_each = 4;
  data.is_compressed = GENERATE(false, true);
  data.tokens[9] = GENERATE(1000u, 0xffffffffu);
  const Text text(data);
  CHECK(window(text.dataset, 0) == numbers(0, 5));
  CHECK(window(text.dataset, 1) == numbers(4, 5));
  CHECK_THAT(test::error_of([&] { window(text.dataset, 2); }),
             Contains("text.h5: train tokens from 8 on: token") && Contains("at 9, but the vocabulary has 1000"));
  DataOptions options;
  options.on_bad_sample = "skip";
  Loader loader(text.dataset, plan_input(options, text.dataset.info(), Purpose::evaluation, 1), {kSeed, 100, 0, 1, {}});
  const Batch& batch = loader.next();
  CHECK(batch.size() == 4);
  REQUIRE(batch.bad.size() == 1);
  CHECK(batch.bad[0].sample == 2);
}

TEST_CASE("evaluation predicts each token of a text once, on any number of ranks", "[token_dataset]") {
  const Text text(test::TokenFile(502));
  for (const int ranks : {1, 2, 3}) {
    Tokens predicted;
    for (const Tokens& tokens : epoch(text.dataset, Purpose::evaluation, ranks, {}))
      std::copy_if(tokens.begin() + 1, tokens.end(), std::back_inserter(predicted),
                   [](std::int32_t token) { return token >= 0; });
    CHECK(predicted == numbers(1, 501));
  }
}

TEST_CASE("training windows are shifted by random numbers of the sample and epoch alone", "[token_dataset]") {
  const Text text(test::TokenFile(402));
  const std::vector<Tokens> first = epoch(text.dataset, Purpose::training, 1, {});
  REQUIRE(first.size() == 101);
  std::set<std::int32_t> begins;
  for (const Tokens& tokens : first) {
    CHECK(tokens == numbers(tokens[0], 5));  // no padding
    begins.insert(tokens[0]);
  }
  CHECK(begins.size() > 90);  // each window begins in its own fourth of the text, except at the end
  CHECK(std::ranges::any_of(begins, [](std::int32_t begin) { return begin % 4 == 3; }));

  for (const int ranks : {2, 3}) CHECK(epoch(text.dataset, Purpose::training, ranks, {}, 3) == first);
  const std::vector<Tokens> rest = epoch(text.dataset, Purpose::training, 2, {0, 21});
  CHECK(std::equal(rest.begin(), rest.end(), first.begin() + 21, first.end()));

  const std::vector<Tokens> second = epoch(text.dataset, Purpose::training, 1, {1, 0});
  std::set<std::int32_t> others;
  for (const Tokens& tokens : second) others.insert(tokens[0]);
  CHECK(others != begins);
}

TEST_CASE("options of images are refused for text, and the other way round", "[token_dataset]") {
  const Text text(test::TokenFile(100));
  const auto plan = [&](const DataOptions& options) {
    return test::error_of([&] { plan_input(options, text.dataset.info(), Purpose::training, 1); });
  };
  DataOptions options;
  options.image = 32;
  CHECK(plan(options) == "--image: is for images, and the data is text; remove the option");
  options = {};
  options.augment = "flip";
  CHECK_THAT(plan(options), Contains("--augment: is for images"));
  options = {};
  options.mixup = 0.5;
  CHECK_THAT(plan(options), Contains("--augment: is for images"));
  options = {};
  options.length = 64;
  DatasetInfo images;
  images.height = images.width = images.channels = 1;
  CHECK(test::error_of([&] { plan_input(options, images, Purpose::training, 1); }) ==
        "--length: is for text, and the data is images; remove the option");

  const InputPlan input = plan_input({}, text.dataset.info(), Purpose::training, 8);
  CHECK((input.window.length == 4 && input.shift_windows && input.workers == 1 && input.image_bytes() == 20));
  CHECK_THAT(to_string(input), Contains("4 tokens: shifted randomly"));
  CHECK_THAT(order_of(input, text.dataset.info()), Contains("25 windows of 4 tokens"));
  CHECK(!plan_input({}, text.dataset.info(), Purpose::evaluation, 8).shift_windows);
}

TEST_CASE("the fingerprint of text has its tokens and its vocabulary", "[token_dataset]") {
  test::TokenFile data(100);
  const auto fields = [](const test::TokenFile& file) {
    const Text text(file);
    return data_fields(text.dataset.info(), sample_fields("training", text.dataset));
  };
  const auto before = fields(data);
  CHECK(!first_difference(before, fields(data)));
  data.tokens[50] = 0;
  CHECK(first_difference(before, fields(data)).value().starts_with("a hash of the training text: "));
  data.tokens.resize(98);
  data.documents.back() = 98;
  CHECK(first_difference(before, fields(data)) == "the number of training tokens: 100 before, 98 now");
  data.vocabulary = 2000;
  CHECK(first_difference(before, fields(data)) == "the vocabulary: 1000 before, 2000 now");
}

}  // namespace annulus
