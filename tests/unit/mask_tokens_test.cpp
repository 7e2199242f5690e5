// Text as masked language models read it.

#include "src/data/mask_tokens.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "src/data/loader.h"
#include "src/data/open_samples.h"
#include "src/data/token_dataset.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"
#include "tests/unit/token_file.h"

namespace annulus {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::int32_t kVocabulary = 1000, kMask = 1003;

// A window of `length` tokens i + 1, of which the last `missing` are missing.
Tokens masked_window(std::size_t length, std::size_t missing, std::uint64_t key) {
  Tokens window(2 * length, -1);
  for (std::size_t i = 0; i + missing < length; ++i) window[i] = static_cast<std::int32_t>(i + 1);
  Draws draws(key);
  mask_tokens(draws, kVocabulary, kMask, window);
  return window;
}

// What all ranks read in an epoch, step by step.
std::vector<Tokens> masked_epoch(const Samples& dataset, Purpose purpose, int ranks, Cursor start = {}) {
  const InputPlan plan = plan_input({}, dataset.info(), purpose, 1);
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int rank = 0; rank < ranks; ++rank)
    loaders.push_back(std::make_unique<Loader>(dataset, plan, BatchRequest{5, 7, rank, ranks, start}));
  std::vector<Tokens> windows;
  for (bool last = false; !last;)
    for (const auto& loader : loaders) {
      const Batch& batch = loader->next();
      const auto tokens = windows_in(batch.images);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const auto window = tokens.subspan(i * plan.window.size(), plan.window.size());
        windows.emplace_back(window.begin(), window.end());
      }
      last = batch.step.last_of_epoch;
    }
  return windows;
}

}  // namespace

TEST_CASE("15 % of a window's tokens are predicted: 80 % are masked, 10 % random, 10 % as they are") {
  constexpr std::size_t kLength = 40, kWindows = 4000;
  std::size_t masked = 0, same = 0;
  std::vector<std::size_t> predicted(kLength);
  for (std::size_t key = 0; key < kWindows; ++key) {
    const Tokens window = masked_window(kLength, 0, key);
    REQUIRE(std::count_if(window.begin() + kLength, window.end(), [](std::int32_t token) { return token >= 0; }) == 6);
    for (std::size_t i = 0; i < kLength; ++i) {
      const auto original = static_cast<std::int32_t>(i + 1), read = window[i], target = window[kLength + i];
      REQUIRE((target < 0 ? read == original : target == original && (read == kMask || read < kVocabulary)));
      if (target < 0) continue;
      ++predicted[i];
      masked += read == kMask;
      same += read == original;
    }
  }
  // Five standard deviations, and the random tokens that are the original one.
  CHECK(std::abs(static_cast<double>(masked) / (6 * kWindows) - 0.8) < 0.013);
  CHECK(std::abs(static_cast<double>(same) / (6 * kWindows) - 0.1) < 0.011);
  for (const std::size_t times : predicted) CHECK(std::abs(static_cast<double>(times) - 600) < 113);
}

TEST_CASE("missing tokens are not predicted, and of few tokens one is") {
  for (const auto& [missing, expected] : {std::pair<std::size_t, std::ptrdiff_t>{40, 0}, {39, 1}, {30, 2}, {20, 3}}) {
    const Tokens window = masked_window(40, missing, 7);
    CHECK(std::count_if(window.begin() + 40, window.end(), [](std::int32_t token) { return token >= 0; }) == expected);
    CHECK(std::count(window.begin() + 40 - static_cast<std::ptrdiff_t>(missing), window.begin() + 40, -1) ==
          static_cast<std::ptrdiff_t>(missing));
  }
}

TEST_CASE("masks depend on the sample and the epoch alone") {
  const test::TemporaryFolder folder;
  test::TokenFile(1002).write(folder / "text.h5");
  const TokenDataset dataset({folder / "text.h5"}, "train", 20, Prediction::masked);
  for (const Purpose purpose : {Purpose::training, Purpose::evaluation}) {
    const std::vector<Tokens> first = masked_epoch(dataset, purpose, 1);
    REQUIRE(first.size() == dataset.info().size);
    for (const int ranks : {2, 3, 4}) CHECK(masked_epoch(dataset, purpose, ranks) == first);
    const std::vector<Tokens> rest = masked_epoch(dataset, purpose, 2, {0, 21});
    CHECK(std::equal(rest.begin(), rest.end(), first.begin() + 21, first.end()));
    CHECK(masked_epoch(dataset, purpose, 1, {1, 0}) != first);
  }
}

TEST_CASE("a split that is missing is reported with those that are there") {
  const test::TemporaryFolder folder;
  const std::string file = (folder / "text.h5").string();
  test::TokenFile(47).write(file);
  CHECK(test::error_of([&] { open_samples({file}, "test", 20); }) == file + ": no test split, but train (see --split)");
}

TEST_CASE("the last token of a text is masked, also if it is the only one of a window") {
  const test::TemporaryFolder folder;
  test::TokenFile(41).write(folder / "text.h5");
  const TokenDataset dataset({folder / "text.h5"}, "train", 20, Prediction::masked);
  REQUIRE(dataset.info().size == 3);
  const Tokens last = masked_epoch(dataset, Purpose::evaluation, 1).back();
  CHECK(last[0] == 21);
  CHECK(last.back() == 40);
  CHECK(std::count(last.begin() + 20, last.end(), -1) == 19);
  dataset.will_need({0, 3});
  std::vector<std::uint8_t> bytes(dataset.info().image_bytes());
  dataset.read_shifted(2, 0, bytes);
  CHECK(windows_in(bytes)[0] == 21);  // a window of 20 tokens, with the last
  test::TokenFile(40).write(folder / "whole.h5");
  CHECK(TokenDataset({folder / "whole.h5"}, "train", 20, Prediction::masked).info().size == 2);
}

TEST_CASE("windows for masked tokens are whole, and each token is chosen in one window only") {
  const test::TemporaryFolder folder;
  test::TokenFile(47).write(folder / "text.h5");
  const TokenDataset dataset({folder / "text.h5"}, "train", 20, Prediction::masked);
  const std::vector<Tokens> windows = masked_epoch(dataset, Purpose::evaluation, 1);
  REQUIRE(windows.size() == 3);
  for (const Tokens& window : windows)
    CHECK(std::all_of(window.begin(), window.begin() + 20, [](std::int32_t token) { return token >= 0; }));
  for (std::size_t i = 0; i < 20; ++i) {
    const auto original = static_cast<std::int32_t>(27 + i), predicted = windows[2][20 + i];
    if (i < 13) CHECK((predicted == -1 && windows[2][i] == original));
    if (predicted != -1) CHECK(predicted == original);
  }
  CHECK(std::count(windows[2].begin() + 20, windows[2].end(), -1) == 19);
  CHECK(test::error_of([&] { open_samples({folder / "text.h5"}, "train", 48, true); }) ==
        (folder / "text.h5").string() + ": /train: 47 tokens are fewer than a window of 48: give --length 47");
}

}  // namespace annulus
