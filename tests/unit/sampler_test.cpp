#include "src/data/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "tests/unit/error_text.h"

namespace annulus {
namespace {

std::vector<std::size_t> samples(std::size_t size, std::uint64_t seed, std::uint64_t epoch) {
  const EpochOrder order(size, seed, epoch);
  std::vector<std::size_t> result;
  for (std::size_t position = 0; position < size; ++position) result.push_back(order.sample(position));
  return result;
}

// The samples of `steps` steps in the order of the positions, gathered from the shares of all ranks.
std::vector<std::size_t> gathered(std::size_t size, std::size_t global_batch, int ranks, int steps) {
  std::vector<std::size_t> result;
  Cursor cursor;
  for (int i = 0; i < steps; ++i) {
    const StepPlan step = plan_step(cursor, size, global_batch);
    const EpochOrder order(size, 7, step.epoch);
    for (int rank = 0; rank < ranks; ++rank) {
      const Range share = step.share(rank, ranks);
      for (std::size_t position = share.begin; position < share.end; ++position) {
        result.push_back(order.sample(position));
      }
    }
    cursor = after(step);
  }
  return result;
}

// How ranks share a step: see StepPlan.
struct Sharing {
  std::size_t shards = 0, unit = 1, piece_size = 0;
  bool weighted = false;  // ranks have unequal shares, and one has none
};

// The samples of each step from `cursor` to the end of the epoch before `end_epoch`, in the order of their positions,
// gathered from the shares of all ranks.
std::vector<std::vector<std::size_t>> samples_of_steps(const Shuffle& shuffle, const Sharing& sharing, int ranks,
                                                       Cursor cursor, std::uint64_t end_epoch) {
  constexpr std::size_t kSize = 103, kBatch = 24;
  std::vector<std::vector<std::size_t>> steps;
  while (cursor.epoch < end_epoch) {
    StepPlan step = plan_step(cursor, kSize, kBatch);
    step.piece_size = sharing.piece_size;
    if (sharing.weighted)
      for (int rank = 0; rank < ranks; ++rank) step.weights.push_back(static_cast<std::size_t>(ranks - rank) % 3 + 1);
    if (sharing.weighted && ranks > 1) step.weights.front() = 0;
    std::vector<std::size_t> positions;
    for (int rank = 0; rank < ranks; ++rank) {
      const Range share = step.share(rank, ranks, sharing.shards, sharing.unit);
      for (std::size_t number = 0; number < share.size(); ++number)
        positions.push_back(step.position(share, rank, ranks, number));
    }
    std::ranges::sort(positions);
    const SampleOrder order(shuffle, kSize, 7, step.epoch);
    std::vector<std::size_t>& found = steps.emplace_back();
    for (const std::size_t position : positions) found.push_back(order.sample(position));
    cursor = after(step);
  }
  return steps;
}

}  // namespace

TEST_CASE("an epoch's order is a permutation", "[sampler]") {
  for (const std::size_t size : {1u, 2u, 3u, 5u, 16u, 17u, 1000u, 60000u}) {
    std::vector<bool> seen(size, false);
    for (const std::size_t sample : samples(size, 1, 2)) {
      REQUIRE(sample < size);
      REQUIRE_FALSE(seen[sample]);
      seen[sample] = true;
    }
  }
}

TEST_CASE("an epoch's order is a function of seed and epoch", "[sampler]") {
  CHECK(samples(1000, 1, 0) == samples(1000, 1, 0));
  CHECK(samples(1000, 1, 0) != samples(1000, 2, 0));
  CHECK(samples(1000, 1, 0) != samples(1000, 1, 1));
}

TEST_CASE("an epoch's order passes simple randomness tests", "[sampler]") {
  // A random permutation has one fixed point on average, and neighbours a third of the size apart.
  constexpr std::size_t kSize = 60000;
  const std::vector<std::size_t> order = samples(kSize, 3, 0);
  std::size_t fixed = 0;
  double distance = 0;
  for (std::size_t i = 1; i < kSize; ++i) {
    fixed += order[i] == i;
    distance += std::abs(static_cast<double>(order[i]) - static_cast<double>(order[i - 1]));
  }
  CHECK(fixed < 10);
  CHECK(distance / kSize == Approx(kSize / 3.0).epsilon(0.02));
}

TEST_CASE("every permutation of few samples occurs", "[sampler]") {
  // Each of the 6 permutations of 3 things should come up for about a sixth of the seeds.
  std::vector<int> drawn(27, 0);
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const std::vector<std::size_t> order = samples(3, seed, 0);
    ++drawn[9 * order[0] + 3 * order[1] + order[2]];
  }
  for (const std::size_t code : {5u, 7u, 11u, 15u, 19u, 21u}) CHECK(drawn[code] == Approx(1000).margin(200));
}

TEST_CASE("a block order is a permutation, and so are the blocks of its windows", "[sampler]") {
  for (const std::size_t size : {1u, 2u, 7u, 8u, 9u, 63u, 64u, 65u, 1000u}) {
    for (const auto& [block, window] : {std::pair{1u, 1u}, {1u, 5u}, {8u, 1u}, {8u, 3u}, {64u, 2u}, {2000u, 2u}}) {
      const BlockOrder order(size, block, window, 3, 1);
      std::vector<int> seen(size, 0), hinted(size, 0);
      for (std::size_t position = 0; position < size; ++position) ++seen[order.sample(position)];
      for (std::size_t i = 0; i < order.windows(); ++i)
        order.for_each_block(i, [&](Range samples) {
          for (std::size_t sample = samples.begin; sample < samples.end; ++sample) ++hinted[sample % size];
        });
      CHECK(seen == std::vector<int>(size, 1));
      CHECK(hinted == std::vector<int>(size, 1));
    }
  }
}

TEST_CASE("a block order stays within a window's blocks, which are read sequentially", "[sampler]") {
  constexpr std::size_t kSize = 1003, kBlock = 10, kWindow = 4;
  const BlockOrder order(kSize, kBlock, kWindow, 3, 1);
  std::vector<std::size_t> first;
  for (std::size_t window = 0; window < order.windows(); ++window) {
    std::vector<bool> inside(kSize, false);
    order.for_each_block(window, [&](Range samples) {
      for (std::size_t sample = samples.begin; sample < samples.end; ++sample) inside[sample % kSize] = true;
    });
    const std::size_t begin = window * kBlock * kWindow;
    for (std::size_t position = begin; position < std::min(begin + kBlock * kWindow, kSize); ++position) {
      CHECK(order.window_of(position) == window);
      CHECK(inside[order.sample(position)]);
    }
    first.push_back(order.sample(begin));
  }
  CHECK_FALSE(std::ranges::is_sorted(first));
}

TEST_CASE("a block order is a function of seed and epoch, at any scale", "[sampler]") {
  const auto of = [](std::uint64_t seed, std::uint64_t epoch) {
    const BlockOrder order(1000, 10, 4, seed, epoch);
    std::vector<std::size_t> result;
    for (std::size_t position = 0; position < 1000; ++position) result.push_back(order.sample(position));
    return result;
  };
  CHECK(of(1, 0) == of(1, 0));
  CHECK(of(1, 0) != of(2, 0));
  CHECK(of(1, 0) != of(1, 1));
  constexpr std::size_t kMany = 1'000'000'007;
  const SampleOrder many({Shuffle::Kind::block, 256, 16}, kMany, 1, 0);
  std::vector<std::size_t> samples_of_window;
  for (std::size_t position = kMany - 4000; position < kMany; ++position)
    samples_of_window.push_back(many.sample(position));
  std::ranges::sort(samples_of_window);
  CHECK(std::ranges::adjacent_find(samples_of_window) == samples_of_window.end());
  CHECK(samples_of_window.back() < kMany);
}

TEST_CASE("the ranks' shares partition the batch of every step", "[sampler]") {
  constexpr std::size_t kSize = 103;
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::size_t global_batch : {1u, 2u, 5u, 10u, 64u, 103u, 200u}) {
      Cursor cursor;
      while (cursor.epoch == 0) {
        const StepPlan step = plan_step(cursor, kSize, global_batch);
        std::size_t end = step.positions.begin;
        for (int rank = 0; rank < ranks; ++rank) {
          const Range share = step.share(rank, ranks);
          REQUIRE(share.begin == end);
          end = share.end;
        }
        REQUIRE(end == step.positions.end);
        REQUIRE(step.share(ranks, ranks).size() == 0);  // a rank that only serves
        cursor = after(step);
      }
    }
  }
}

TEST_CASE("an epoch's last step may be shorter, and the next epoch follows", "[sampler]") {
  const StepPlan first = plan_step({4, 0}, 10, 8);
  CHECK(first.positions == Range{0, 8});
  CHECK_FALSE(first.last_of_epoch);
  CHECK(after(first) == Cursor{4, 8});
  const StepPlan last = plan_step(after(first), 10, 8);
  CHECK(last.positions == Range{8, 10});
  CHECK(last.global_batch() == 2);
  CHECK(last.last_of_epoch);
  CHECK(after(last) == Cursor{5, 0});
  CHECK(plan_step({0, 8}, 16, 8).last_of_epoch);
}

TEST_CASE("the order of the samples does not depend on the number of ranks", "[sampler]") {
  const std::vector<std::size_t> alone = gathered(103, 10, 1, 25);
  for (const int ranks : {2, 3, 4, 7, 16}) CHECK(gathered(103, 10, ranks, 25) == alone);
}

TEST_CASE("a run that is killed after any step and resumed on any ranks has each sample of an unbroken run, once",
          "[sampler]") {
  constexpr std::uint64_t kEpochs = 3;
  for (const Shuffle& shuffle : {Shuffle{Shuffle::Kind::none}, Shuffle{}, Shuffle{Shuffle::Kind::block, 8, 3}}) {
    const auto unbroken = samples_of_steps(shuffle, {}, 1, {}, kEpochs);
    for (const Sharing& sharing : {Sharing{}, Sharing{.shards = 8}, Sharing{.unit = 4}, Sharing{.piece_size = 10},
                                   Sharing{.unit = 4, .weighted = true}})
      for (const int ranks : {1, 2, 3, 4, 7}) {
        CAPTURE(static_cast<int>(shuffle.kind), sharing.shards, sharing.unit, sharing.piece_size, ranks);
        REQUIRE(samples_of_steps(shuffle, sharing, ranks, {}, kEpochs) == unbroken);
        Cursor cursor;
        for (std::size_t step = 0; step < unbroken.size(); ++step) {
          const int resumed_on = ranks % 4 + 1;
          const auto rest = samples_of_steps(shuffle, sharing, resumed_on, cursor, kEpochs);
          REQUIRE(std::equal(rest.begin(), rest.end(), unbroken.begin() + static_cast<std::ptrdiff_t>(step),
                             unbroken.end()));
          cursor = after(plan_step(cursor, 103, 24));
        }
      }
  }
}

TEST_CASE("a cursor beyond the data is an error", "[sampler]") {
  CHECK_THAT(test::error_of([] { plan_step({0, 10}, 10, 4); }), Catch::Contains("sample 10 of an epoch of 10"));
}

}  // namespace annulus
