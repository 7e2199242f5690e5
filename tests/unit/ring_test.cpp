#include "collectives/ring/ring.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>
#include <thread>

#include "collectives/world/all_reduce_context.h"
#include "kernels/base/error.h"
#include "kernels/base/split.h"
#include "tests/unit/loopback_link.h"

namespace annulus {

namespace {

using Arrays = std::vector<std::vector<float>>;  // one for each rank

struct Result {
  Arrays sums;
  std::vector<std::uint64_t> bytes_sent;
};

// Each rank is a thread, and all-reduces the same array `times` times on the same ring, like training steps.
Result sum_over_threads(const Arrays& arrays, RingOptions options, LoopbackDelivery delivery, int times = 1) {
  const std::size_t size = arrays.size();
  auto links = loopback_ring(size, delivery);
  Result result{arrays, std::vector<std::uint64_t>(size)};
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      Ring ring(std::move(links[rank]), rank, size, std::make_shared<AllReduceContext>(0), options);
      for (int time = 0; time < times; ++time) {
        result.sums[rank] = arrays[rank];
        ring.all_reduce(result.sums[rank]);
      }
      result.bytes_sent[rank] = ring.bytes_sent();
    });
  ranks.clear();  // joins
  return result;
}

// Small integers, so that float32 sums them exactly in any order.
Arrays integers(std::size_t size, std::size_t count) {
  Arrays arrays(size, std::vector<float>(count));
  for (std::size_t rank = 0; rank < size; ++rank)
    for (std::size_t i = 0; i < count; ++i) arrays[rank][i] = static_cast<float>((i * 31 + rank * 7) % 1009);
  return arrays;
}

std::vector<float> exact_sum(const Arrays& arrays) {
  std::vector<float> sum(arrays[0].size());
  for (const auto& array : arrays)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += array[i];
  return sum;
}

// The exact cost: a rank sends every chunk except the one that it completes, and every chunk except the next one.
std::uint64_t expected_bytes(std::size_t rank, std::size_t size, std::size_t count) {
  const auto chunk = [&](std::size_t number) {
    return split_blocks(count, RingPartition::kLine, size, number % size).size();
  };
  return sizeof(float) * (2 * count - chunk(rank + 1) - chunk(rank + 2));
}

}  // namespace

TEST_CASE("the ring all-reduce is exact, sends 2(N-1)/N of the array, and is identical on all ranks") {
  const auto size = GENERATE(as<std::size_t>{}, 1, 2, 3, 4, 7);
  const auto segment_bytes = GENERATE(as<std::size_t>{}, 64, 200, 256 * 1024);
  const auto in_flight = GENERATE(as<std::size_t>{}, 1, 2, 4);
  const auto delivery = GENERATE(LoopbackDelivery::into_landing, LoopbackDelivery::into_memory_of_the_link);
  for (const std::size_t count :
       std::set<std::size_t>{0, 1, size, 16 * size - 1, 16 * size, 16 * size + 1, 997, 5003}) {
    CAPTURE(size, segment_bytes, in_flight, count);
    const Arrays arrays = integers(size, count);
    const Result result = sum_over_threads(arrays, {segment_bytes, in_flight}, delivery);
    CHECK(result.sums == Arrays(size, exact_sum(arrays)));
    for (std::size_t rank = 0; rank < size; ++rank) CHECK(result.bytes_sent[rank] == expected_bytes(rank, size, count));
  }
}

TEST_CASE("if the array divides evenly, every rank sends exactly 2(N-1)/N of it") {
  const auto size = GENERATE(as<std::size_t>{}, 1, 2, 3, 4, 7);
  const std::size_t count = 1024 * size;
  const Result result = sum_over_threads(integers(size, count), {.segment_bytes = 256}, LoopbackDelivery::into_landing);
  for (const std::uint64_t bytes : result.bytes_sent) CHECK(bytes == 2 * (size - 1) * count * sizeof(float) / size);
}

TEST_CASE("large arrays are sent in many segments") {
  const auto size = GENERATE(as<std::size_t>{}, 2, 3, 4);
  for (const std::size_t count : {std::size_t{10'007}, std::size_t{1'000'003}}) {
    const Arrays arrays = integers(size, count);
    CHECK(sum_over_threads(arrays, {.segment_bytes = 4096}, LoopbackDelivery::into_landing).sums ==
          Arrays(size, exact_sum(arrays)));
    CHECK(sum_over_threads(arrays, {}, LoopbackDelivery::into_landing).sums == Arrays(size, exact_sum(arrays)));
  }
}

TEST_CASE("repeated all-reduces on one ring are bit-identical") {
  const Arrays arrays = integers(3, 997);
  const Result result = sum_over_threads(arrays, {.segment_bytes = 64}, LoopbackDelivery::into_landing, 20);
  CHECK(result.sums == Arrays(3, exact_sum(arrays)));
  CHECK(result.bytes_sent[0] == 20 * expected_bytes(0, 3, 997));
}

TEST_CASE("rounded sums are bit-identical on all ranks, for any segment size") {
  const auto size = GENERATE(as<std::size_t>{}, 2, 3, 4, 7);
  Arrays arrays = integers(size, 10'007);
  for (auto& array : arrays)
    for (float& value : array) value = std::sin(value) / 3;
  const Arrays whole = sum_over_threads(arrays, {}, LoopbackDelivery::into_landing).sums;
  const Arrays segments = sum_over_threads(arrays, {.segment_bytes = 100}, LoopbackDelivery::into_landing).sums;
  CHECK(whole == Arrays(size, whole[0]));
  CHECK(segments == whole);
}

TEST_CASE("a waiting ring reports its current step") {
  // Records the reported progress when the ring begins to wait.
  class Witness final : public RingLink {
   public:
    Witness(std::unique_ptr<RingLink> link, const AllReduceProgress& activity, std::vector<std::string>& heard)
        : link_(std::move(link)), activity_(activity), heard_(heard) {}
    void post(std::span<const std::byte> to_next, std::span<std::byte> landing) override {
      link_->post(to_next, landing);
    }
    std::span<const std::byte> collect() override {
      const auto [name, number, of] = activity_.snapshot().step;
      heard_.push_back(fmt::format("{} {} of {}", name, number, of));
      return link_->collect();
    }

   private:
    std::unique_ptr<RingLink> link_;
    const AllReduceProgress& activity_;
    std::vector<std::string>& heard_;
  };

  auto links = loopback_ring(3, LoopbackDelivery::into_landing);
  std::vector<std::vector<std::string>> heard(3);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      const auto context = std::make_shared<AllReduceContext>(0);
      std::vector<float> values(3 * 2 * RingPartition::kLine);  // two segments a step
      Ring ring(std::make_unique<Witness>(std::move(links[rank]), context->progress, heard[rank]), rank, 3, context,
                {.segment_bytes = 64});
      ring.all_reduce(values);
    });
  ranks.clear();
  for (const auto& lines : heard)
    CHECK(lines == std::vector<std::string>{"reduce-scatter, ring step 1 of 4", "reduce-scatter, ring step 1 of 4",
                                            "reduce-scatter, ring step 2 of 4", "reduce-scatter, ring step 2 of 4",
                                            "all-gather, ring step 3 of 4", "all-gather, ring step 3 of 4",
                                            "all-gather, ring step 4 of 4", "all-gather, ring step 4 of 4"});
}

TEST_CASE("segments smaller than a cache line, or no exchange in flight, are refused") {
  const auto make = [](RingOptions options) {
    Ring(std::move(loopback_ring(2, LoopbackDelivery::into_landing)[0]), 0, 2, std::make_shared<AllReduceContext>(0),
         options);
  };
  CHECK_THROWS_AS(make({.segment_bytes = 63}), Error);
  CHECK_THROWS_AS(make({.in_flight = 0}), Error);
}

TEST_CASE("a rank whose neighbour has left gets an error instead of hanging") {
  const auto gone = GENERATE(as<std::size_t>{}, 0, 1, 2);
  auto links = loopback_ring(3, LoopbackDelivery::into_landing);
  std::vector<int> errors(3);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      std::vector<float> values(100);
      Ring ring(std::move(links[rank]), rank, 3, std::make_shared<AllReduceContext>(0), {.segment_bytes = 64});
      if (rank == gone) return;
      try {
        ring.all_reduce(values);
      } catch (const Error&) {
        errors[rank] = 1;
      }
    });
  ranks.clear();
  CHECK(std::accumulate(errors.begin(), errors.end(), 0) == 2);
}

TEST_CASE("ranks with arrays of different sizes get an error") {
  auto links = loopback_ring(2, LoopbackDelivery::into_landing);
  std::vector<int> errors(2);
  std::vector<std::jthread> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      std::vector<float> values(100 + 10 * rank);
      Ring ring(std::move(links[rank]), rank, 2, std::make_shared<AllReduceContext>(0));
      try {
        ring.all_reduce(values);
      } catch (const Error&) {
        errors[rank] = 1;
      }
    });
  ranks.clear();
  CHECK(errors == std::vector<int>{1, 1});
}

}  // namespace annulus
