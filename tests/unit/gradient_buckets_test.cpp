#include "collectives/gradient_buckets.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "collectives/all_reduce_worker.h"
#include "collectives/ring/ring.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "tests/unit/loopback_link.h"

namespace annulus {

namespace {

using Ranges = std::vector<Range>;

Ranges cut(std::vector<std::size_t> ends, std::size_t elements_per_bucket) {
  return cut_buckets(ends, elements_per_bucket * sizeof(float));
}

// Records all calls.
class Recorder final : public AllReduce {
 public:
  Recorder() : AllReduce({"recorder", "recorder"}) {}

  DeviceView allocate(std::size_t, Memory) override { return {}; }
  Ticket enqueue(DeviceView values, const Request&) override {
    enqueued.push_back(floats(values));
    return 100 + enqueued.size();
  }
  void wait(Ticket ticket) override { waited.push_back(ticket); }
  void join(Ticket ticket) override { joined.push_back(ticket); }

  std::vector<std::span<float>> enqueued;
  std::vector<Ticket> waited, joined;
};

}  // namespace

TEST_CASE("buckets end at parameter boundaries") {
  CHECK(cut({10, 20, 30, 40}, 20) == Ranges{{0, 20}, {20, 40}});
  CHECK(cut({10, 20, 30, 40}, 29) == Ranges{{0, 20}, {20, 40}});
  CHECK(cut({10, 20, 30, 40}, 30) == Ranges{{0, 30}, {30, 40}});
  CHECK(cut({10, 20, 30, 40}, 10) == Ranges{{0, 10}, {10, 20}, {20, 30}, {30, 40}});
  CHECK(cut({10, 20, 30, 40}, 1000) == Ranges{{0, 40}});
  CHECK(cut({10, 10, 20}, 10) == Ranges{{0, 10}, {10, 20}});
}

TEST_CASE("a parameter larger than a bucket is split evenly, at cache lines if a bucket holds one") {
  CHECK(cut({5, 30}, 10) == Ranges{{0, 5}, {5, 14}, {14, 22}, {22, 30}});
  CHECK(cut({5, 27, 33}, 10) == Ranges{{0, 5}, {5, 13}, {13, 20}, {20, 27}, {27, 33}});
  CHECK(cut({16, 196, 200}, 64) == Ranges{{0, 16}, {16, 80}, {80, 144}, {144, 196}, {196, 200}});
  CHECK(cut({3}, 1) == Ranges{{0, 1}, {1, 2}, {2, 3}});
}

TEST_CASE("no gradients give no buckets; a bucket size of 0 is refused") {
  CHECK(cut({}, 10).empty());
  CHECK(cut({0}, 10).empty());
  CHECK_THROWS_AS(cut_buckets(std::vector<std::size_t>{10}, 3), Error);
}

TEST_CASE("any bucket size in bytes is accepted") {
  CHECK(cut_buckets(std::vector<std::size_t>{10, 20}, std::numeric_limits<std::size_t>::max()) == Ranges{{0, 20}});
}

TEST_CASE("buckets are enqueued in order, once a step, as soon as their last gradient is ready") {
  Lane lane;
  std::vector<float> arena(30);
  Recorder recorder;
  GradientBuckets buckets(lane, view_of(arena), {{0, 10}, {10, 20}, {20, 30}}, recorder);
  for (std::size_t step = 1; step <= 2; ++step) {
    const std::size_t before = 3 * (step - 1);
    buckets.begin_step();
    buckets.ready(9);
    CHECK(recorder.enqueued.size() == before);
    buckets.ready(10);
    buckets.ready(15);
    CHECK(recorder.enqueued.size() == before + 1);
    buckets.ready(30);
    REQUIRE(recorder.enqueued.size() == before + 3);
    for (std::size_t bucket = 0; bucket < 3; ++bucket) {
      CHECK(recorder.enqueued[before + bucket].data() == arena.data() + buckets.range(bucket).begin);
      CHECK(recorder.enqueued[before + bucket].size() == 10);
      buckets.wait(bucket);
      CHECK(recorder.waited.back() == 100 + before + bucket + 1);
    }
  }
}

TEST_CASE("a bucket's timestamps are ordered and belong to the current step") {
  Lane lane;
  std::vector<float> arena(20);
  Recorder recorder;
  GradientBuckets buckets(lane, view_of(arena), {{0, 10}, {10, 20}}, recorder);
  const double begin = now_seconds();
  buckets.begin_step();
  buckets.ready(10);
  buckets.ready(20);
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) buckets.wait(bucket);
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    const GradientBuckets::Times& times = buckets.times(bucket);
    CHECK(begin <= times.ready.seconds);
    CHECK(times.ready.seconds <= times.wait_begin.seconds);
    CHECK(times.wait_begin.seconds <= times.wait_end.seconds);
    CHECK(times.wait_end.seconds <= now_seconds());
  }
  CHECK(buckets.times(0).ready.seconds <= buckets.times(1).ready.seconds);
}

TEST_CASE("the default bucket size is 1/8 of the gradients, clamped") {
  CHECK(default_bucket_bytes(1 << 20) == 128 << 10);
  CHECK(default_bucket_bytes(1000) == 64 << 10);
  CHECK(default_bucket_bytes(std::size_t{1} << 30) == 4 << 20);
}

TEST_CASE("the deferred buckets are those that fit the share, from a position on, never the first") {
  const Ranges buckets{{0, 10}, {10, 30}, {30, 40}, {40, 100}};
  CHECK(deferred_buckets(buckets, 0, 0) == Range{1, 1});
  CHECK(deferred_buckets(buckets, 0, 0.19) == Range{1, 1});
  CHECK(deferred_buckets(buckets, 0, 0.2) == Range{1, 2});
  CHECK(deferred_buckets(buckets, 0, 0.3) == Range{1, 3});
  CHECK(deferred_buckets(buckets, 0, 0.89) == Range{1, 3});
  CHECK(deferred_buckets(buckets, 0, 1) == Range{1, 4});
  CHECK(deferred_buckets(buckets, 10, 0.2) == Range{1, 2});
  CHECK(deferred_buckets(buckets, 11, 0.09) == Range{2, 2});
  CHECK(deferred_buckets(buckets, 30, 0.1) == Range{2, 3});
  CHECK(deferred_buckets(buckets, 11, 0.7) == Range{2, 4});
  CHECK(deferred_buckets(buckets, 50, 1) == Range{4, 4});
  CHECK(deferred_buckets({}, 0, 1).size() == 0);
  CHECK(deferred_buckets(Ranges{{0, 10}}, 0, 1).size() == 0);
}

TEST_CASE("deferred buckets are sent last, lowest layers first, and may complete in the next step") {
  Lane lane;
  std::vector<float> arena(60);
  Recorder recorder;
  const std::size_t first = GENERATE(1, 2);
  GradientBuckets buckets(lane, view_of(arena), {{0, 10}, {10, 20}, {20, 30}, {30, 40}, {40, 50}, {50, 60}}, recorder,
                          {first, first + 2});
  const auto sent = [&] {
    std::vector<std::size_t> numbers;
    for (const auto& values : recorder.enqueued)
      numbers.push_back(static_cast<std::size_t>(values.data() - arena.data()) / 10);
    return numbers;
  };
  using Numbers = std::vector<std::size_t>;
  for (int step = 0; step < 2; ++step) {
    recorder.enqueued.clear();
    buckets.begin_step();
    buckets.ready(30);
    CHECK(sent() == (first == 1 ? Numbers{0} : Numbers{0, 1}));
    buckets.ready(50);
    CHECK(sent() == (first == 1 ? Numbers{0, 3, 4} : Numbers{0, 1, 4}));
    CHECK_THROWS_AS(buckets.send_deferred(), Error);
    buckets.ready(60);
    CHECK(sent() == (first == 1 ? Numbers{0, 3, 4, 5} : Numbers{0, 1, 4, 5}));
    buckets.send_deferred();
    const Numbers order = first == 1 ? Numbers{0, 3, 4, 5, 2, 1} : Numbers{0, 1, 4, 5, 3, 2};
    CHECK(sent() == order);
    recorder.waited.clear();
    recorder.joined.clear();
    buckets.wait(0);
    for (const std::size_t bucket : std::span(order).subspan(1)) buckets.join(bucket);
    CHECK(recorder.joined == std::vector<AllReduce::Ticket>{101, 102, 103, 104, 105, 106});
    CHECK(recorder.waited == std::vector<AllReduce::Ticket>{101});
  }
}

TEST_CASE("buckets are all-reduced on a thread while the rank computes") {
  constexpr std::size_t kRanks = 3, kBuckets = 3, kSteps = 20;
  constexpr std::size_t kSize = 20'000;  // enough to wake the all-reduce's thread
  auto links = loopback_ring(kRanks, LoopbackDelivery::into_landing);
  std::vector<std::size_t> right(kRanks);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      const auto context = std::make_shared<AllReduceContext>(0);
      Lane lane;
      std::vector<float> arena(kBuckets * kSize);
      AllReduceWorker worker(std::make_unique<Ring>(std::move(links[rank]), rank, kRanks, context), "ring", "tested");
      GradientBuckets buckets(lane, view_of(arena), {{0, kSize}, {kSize, 2 * kSize}, {2 * kSize, 3 * kSize}}, worker);
      const auto bucket = [&](std::size_t number) { return std::span(arena).subspan(number * kSize, kSize); };
      for (std::size_t step = 0; step < kSteps; ++step) {
        buckets.begin_step();
        for (std::size_t b = 0; b < kBuckets; ++b) {
          std::ranges::fill(bucket(b), static_cast<float>(rank + b + step));
          buckets.ready((b + 1) * kSize);
        }
        for (std::size_t b = 0; b < kBuckets; ++b) {
          buckets.wait(b);
          const auto sum = static_cast<float>(0 + 1 + 2 + kRanks * (b + step));
          right[rank] += std::ranges::count(bucket(b), sum) == kSize;
        }
      }
    });
  ranks.clear();
  CHECK(right == std::vector(kRanks, kBuckets * kSteps));
}

TEST_CASE("misuse of buckets is refused") {
  Lane lane;
  std::vector<float> arena(20);
  Recorder recorder;
  CHECK_THROWS_AS(GradientBuckets(lane, view_of(arena), {{0, 10}}, recorder), Error);
  for (const Range deferred : {Range{1, 2}, Range{0, 1}})
    CHECK_THROWS_AS(GradientBuckets(lane, view_of(arena), {{0, 20}}, recorder, deferred), Error);
  GradientBuckets buckets(lane, view_of(arena), {{0, 10}, {10, 20}}, recorder);
  buckets.begin_step();
  buckets.ready(10);
  CHECK_NOTHROW(buckets.wait(0));
  CHECK_THROWS_AS(buckets.wait(1), Error);
}

}  // namespace annulus
