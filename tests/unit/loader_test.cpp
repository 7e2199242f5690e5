#include "src/data/loader.h"

#include <catch2/catch.hpp>
#include <deque>
#include <set>

#include "tests/unit/data_file.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

constexpr std::size_t kSize = 103;

Dataset make_dataset(const std::filesystem::path& file) {
  test::DataFile(kSize).write(file);
  return {file, "train"};
}

// A data file whose image number n is full of n.
struct Data {
  test::TemporaryFolder folder;
  Dataset dataset = make_dataset(folder / "data.h5");
};

// The samples of a batch, told by their pixels.
std::vector<std::size_t> samples(const Batch& batch) {
  std::vector<std::size_t> result;
  REQUIRE(batch.images.size() == 4 * batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::uint8_t first = batch.images[4 * i];
    REQUIRE(batch.images[4 * i + 3] == first);
    REQUIRE(batch.labels[i] == first % 2);
    result.push_back(first);
  }
  return result;
}

// All ranks' samples of an epoch, step by step.
std::vector<std::size_t> epoch(const Data& data, std::size_t global_batch, int ranks, Cursor start) {
  std::deque<Loader> loaders;
  for (int rank = 0; rank < ranks; ++rank) loaders.emplace_back(data.dataset, 5, global_batch, rank, ranks, start);
  std::vector<std::size_t> result;
  for (bool last = false; !last;) {
    for (Loader& loader : loaders) {
      const Batch& batch = loader.next();
      const std::vector<std::size_t> share = samples(batch);
      result.insert(result.end(), share.begin(), share.end());
      last = batch.step.last_of_epoch;
    }
  }
  return result;
}

}  // namespace

TEST_CASE("the ranks together see every sample once per epoch, in the order of the epoch", "[loader]") {
  const Data data;
  const EpochOrder order(kSize, 5, 2);
  std::vector<std::size_t> expected;
  for (std::size_t position = 0; position < kSize; ++position) expected.push_back(order.sample(position));
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t global_batch : {3u, 10u, 64u, 200u}) {
      CHECK(epoch(data, global_batch, ranks, {2, 0}) == expected);
    }
  }
}

TEST_CASE("a loader goes on at a cursor, on another number of ranks", "[loader]") {
  const Data data;
  const std::vector<std::size_t> whole = epoch(data, 10, 1, {3, 0});
  const std::vector<std::size_t> rest = epoch(data, 10, 4, {3, 40});
  CHECK(std::vector(whole.begin() + 40, whole.end()) == rest);
}

TEST_CASE("a loader runs from epoch to epoch", "[loader]") {
  const Data data;
  Loader loader(data.dataset, 5, 50, 0, 1, {});
  for (std::uint64_t step = 0; step < 30; ++step) {
    const Batch& batch = loader.next();
    CHECK(batch.step.epoch == step / 3);
    CHECK(batch.size() == (step % 3 == 2 ? 3 : 50));
    CHECK(batch.step.last_of_epoch == (step % 3 == 2));
  }
}

TEST_CASE("empty shares are delivered", "[loader]") {
  const Data data;
  Loader loader(data.dataset, 5, 2, 3, 4, {});
  const Batch& batch = loader.next();
  CHECK(batch.size() == 0);
  CHECK(batch.images.empty());
  CHECK(batch.step.positions == Range{0, 2});
}

TEST_CASE("a batch stays as it is until the next call", "[loader]") {
  const Data data;
  Loader loader(data.dataset, 5, 10, 0, 1, {});
  for (int step = 0; step < 20; ++step) {
    const Batch& batch = loader.next();
    const std::vector<std::uint8_t> copy = batch.images;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(batch.images == copy);
  }
}

TEST_CASE("batches are reused without allocation", "[loader]") {
  const Data data;
  Loader loader(data.dataset, 5, 50, 0, 1, {});
  std::set<const std::uint8_t*> memory;
  for (int step = 0; step < 100; ++step) memory.insert(loader.next().images.data());
  CHECK(memory.size() <= 4);
}

TEST_CASE("what the reading thread meets is thrown, again and again, after the batches before it", "[loader]") {
  const Data data;
  Loader loader(data.dataset, 5, 10, 0, 1, {0, 50});
  std::filesystem::resize_file(data.folder / "data.h5", 0);
  const auto read_on = [&] {
    for (;;) loader.next();
  };
  CHECK_THAT(test::error_of(read_on), Catch::Contains("data.h5"));
  CHECK_THAT(test::error_of(read_on), Catch::Contains("data.h5"));
}

TEST_CASE("a cursor of other data is an Error of next()", "[loader]") {
  const Data data;
  Loader loader(data.dataset, 5, 10, 0, 1, {0, kSize});
  CHECK_THAT(test::error_of([&] { loader.next(); }), Catch::Contains("made with other data"));
}

TEST_CASE("a loader stops at any moment", "[loader]") {
  const Data data;
  for (int steps = 0; steps < 50; ++steps) {
    Loader loader(data.dataset, 5, 10, 0, 1, {});
    for (int step = 0; step < steps % 7; ++step) loader.next();
  }
}

}  // namespace annulus
