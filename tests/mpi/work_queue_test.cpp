#include "src/import/work_queue.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>
#include <thread>

using namespace annulus;

namespace {

struct Outcome {
  std::vector<std::int64_t> times_done;  // of each piece, over all ranks
  WorkQueue::Totals totals;              // rank 0's
};

// Rank `slow` is slow. Rank `stopping` stops at its first piece, and then all others are slow.
Outcome work(const World& world, std::size_t pieces, int slow = -1, int stopping = -1) {
  Outcome outcome{std::vector<std::int64_t>(pieces), {}};
  std::vector<std::size_t> numbers;
  if (world.root()) {
    numbers.resize(pieces);
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  }
  WorkQueue queue(world, numbers, [&](const WorkQueue::Totals& totals) { outcome.totals = totals; });
  bool stops = false;
  for (auto piece = queue.next(); piece; piece = queue.next()) {
    stops = world.rank() == stopping;
    if (stops) break;
    if (world.rank() == slow || stopping >= 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    if (!queue.report(10, 100)) break;
    ++outcome.times_done[*piece];
  }
  queue.finish(stops);
  world.sum(outcome.times_done);
  return outcome;
}

}  // namespace

TEST_CASE("every piece is done once, and rank 0 counts all") {
  const World world;
  for (const std::size_t pieces : {0, 1, 2, 3, 50}) {
    const Outcome outcome = work(world, pieces);
    CHECK(std::ranges::count(outcome.times_done, 1) == static_cast<std::ptrdiff_t>(pieces));
    if (!world.root()) continue;
    CHECK(outcome.totals.pieces == pieces);
    CHECK(outcome.totals.images == 10 * pieces);
    CHECK(outcome.totals.bytes == 100 * pieces);
  }
}

TEST_CASE("a slow rank does not delay other ranks' pieces") {
  const World world;
  for (int slow = 0; slow < world.size(); ++slow) {
    const Outcome outcome = work(world, 20, slow);
    CHECK(std::ranges::count(outcome.times_done, 1) == 20);
  }
}

TEST_CASE("one rank's stop ends the work of all ranks") {
  const World world;
  for (int stopping = 0; stopping < world.size(); ++stopping) {
    constexpr std::size_t kPieces = 1000;  // far more than the others process before they are notified
    const Outcome outcome = work(world, kPieces, -1, stopping);
    CHECK(std::ranges::max(outcome.times_done) <= 1);
    CHECK(static_cast<std::size_t>(std::ranges::count(outcome.times_done, 1)) < kPieces / 2);
  }
}

TEST_CASE("a rank learns of another's stop in the middle of a piece") {
  const World world;
  std::vector<std::size_t> pieces;
  if (world.root()) pieces.assign(static_cast<std::size_t>(world.size()), 0);
  WorkQueue queue(world, pieces, [](const WorkQueue::Totals&) {});
  const bool stops = world.rank() == world.size() - 1;
  const bool has_piece = queue.next().has_value();  // or the last rank was faster
  while (has_piece && !stops && queue.report(1, 1)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  queue.finish(stops);
  CHECK(!queue.next());
}
