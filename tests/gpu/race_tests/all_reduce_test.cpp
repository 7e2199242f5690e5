#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "collectives/gpu/direct_exchange.h"
#include "collectives/gpu/pull_ring.h"
#include "collectives/gpu/ring_sum.h"
#include "collectives/gpu/wire_codec.h"
#include "tests/gpu/emulator_tests/emulation_test.h"
#include "tests/mpi/shares.h"

// Races between the kernels and copies of several ranks, each of which has two streams of this process here.

using namespace annulus;
using namespace annulus::test;

namespace {

constexpr std::size_t kRanks = 3, kSteps = 4;
constexpr std::size_t kCount = 1001;  // chunks of several lines, the last one incomplete

enum class Algorithm { direct, small, ring };
enum class Mistake {
  none,
  does_not_wait_for_lane,
  lane_does_not_wait,
  number_of_last_step,
  overwrites_after_reduce_scatter,
  same_copies
};

class OwnEvent {
 public:
  OwnEvent() { cudaEventCreateWithFlags(&event_, cudaEventDisableTiming); }
  ~OwnEvent() { cudaEventDestroy(event_); }
  OwnEvent(const OwnEvent&) = delete;

  // What `later` does next comes after what `earlier` does now.
  void order(cudaStream_t earlier, cudaStream_t later) const {
    cudaEventRecord(event_, earlier);
    cudaStreamWaitEvent(later, event_);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Rank {
  OwnStream lane, stream;
  OwnEvent ready, done;
  DeviceArray<float> values{kCount}, sums{kSteps * kCount};
  std::array<DeviceArray<float>, 2> copies{DeviceArray<float>(kCount), DeviceArray<float>(kCount)};
  DeviceArray<DirectExchange::Flags> flags{std::vector<DirectExchange::Flags>(1)};
  DeviceArray<PullRing::Flags> ring_flags{std::vector<PullRing::Flags>(1)};
};

class Ranks {
 public:
  explicit Ranks(Mistake mistake) : mistake_(mistake) {
    for (const Rank& rank : ranks_) {
      values_.push_back(rank.values.get());
      flags_.push_back(rank.flags.get());
      for (std::size_t i = 0; i < copies_.size(); ++i) copies_[i].push_back(rank.copies[i].get());
    }
    cudaDeviceSynchronize();
  }

  // In every step each rank's lane writes its array and then reads the sum.
  void run(Algorithm algorithm) {
    for (std::uint32_t step = 0; step < kSteps; ++step)
      for (std::size_t r = 0; r < kRanks; ++r) {
        const Rank& rank = ranks_[r];
        const std::vector<float> share = integers(kCount, static_cast<int>(r), step);
        cudaMemcpyAsync(values_[r], share.data(), kCount * sizeof(float), cudaMemcpyHostToDevice, rank.lane);
        if (mistake_ != Mistake::does_not_wait_for_lane) rank.ready.order(rank.lane, rank.stream);
        // So that the flags of the step before suffice.
        const std::uint32_t late = mistake_ == Mistake::number_of_last_step && r == 1 ? 1 : 0;
        if (algorithm == Algorithm::ring)
          put_in_ring(r, step, late);
        else
          put_direct(algorithm, r, step, late);
        if (mistake_ != Mistake::lane_does_not_wait) rank.done.order(rank.stream, rank.lane);
        cudaMemcpyAsync(rank.sums.get() + step * kCount, values_[r], kCount * sizeof(float), cudaMemcpyDeviceToDevice,
                        rank.lane);
      }
    for (const Rank& rank : ranks_) {
      const std::vector<float> sums = rank.sums.values(rank.lane);
      for (std::uint32_t step = 0; step < kSteps; ++step)
        if (!std::ranges::equal(exact_sum(kCount, kRanks, step), std::span(sums).subspan(step * kCount, kCount)))
          std::fputs("wrong sums\n", stderr);
    }
  }

 private:
  void put_direct(Algorithm algorithm, std::size_t r, std::uint32_t step, std::uint32_t late) const {
    using enum Verb;
    const DirectExchange exchange(r, flags_, ranks_[r].stream);
    const std::uint32_t number = step + 1 - late;
    const std::size_t copy = mistake_ == Mistake::same_copies ? 0 : step % copies_.size();
    if (algorithm == Algorithm::small)
      exchange.put_small(values_[r], copies_[copy], kCount, number);
    else
      exchange.put(values_, kCount, mistake_ == Mistake::overwrites_after_reduce_scatter ? reduce_scatter : all_reduce,
                   number);
  }

  void put_in_ring(std::size_t r, std::uint32_t step, std::uint32_t late) const {
    constexpr std::size_t kSegment = 512;  // bytes; chunks have several
    const std::size_t previous = (r + kRanks - 1) % kRanks, next = (r + 1) % kRanks;
    const auto flags = [&](std::size_t rank) { return ranks_[rank].ring_flags.get(); };
    const PullRing ring(r, kRanks, {flags(previous), flags(r), flags(next)}, kSegment, ranks_[r].stream);
    const auto plan = [&](std::uint32_t ready) { return ring.plan(kCount, Verb::all_reduce, ready, step + 1 - late); };
    const std::uint32_t ready_of_step = 1 + ring.exchanges(plan(0));
    ring.put(values_[r], values_[previous], kCount, plan(step * ready_of_step - late));
  }

  const Mistake mistake_;
  std::array<Rank, kRanks> ranks_;
  std::vector<float*> values_;
  std::array<std::vector<float*>, 2> copies_;
  std::vector<DirectExchange::Flags*> flags_;
};

Ending ending_with_checks(const std::function<void()>& work) {
  return ending_of([&] {
    setenv("ANNULUS_EMULATED_RACES", "streams", 1);
    work();
  });
}

void check_race(const Ending& ending) {
  CHECK(ending.signal == SIGABRT);
  CHECK_THAT(ending.text,
             Catch::Contains("a race between streams") && Catch::Contains("neither events nor flags order them"));
}

}  // namespace

TEST_CASE("the streams of an all-reduce between GPUs are ordered, and mistakes are reported", "[.all_reduce]") {
  const auto ending = [](Algorithm algorithm, Mistake mistake) {
    return ending_with_checks([=] { Ranks(mistake).run(algorithm); });
  };
  for (const Algorithm algorithm : {Algorithm::direct, Algorithm::small, Algorithm::ring}) {
    CAPTURE(static_cast<int>(algorithm));
    CHECK(ending(algorithm, Mistake::none).text == "");
    check_race(ending(algorithm, Mistake::does_not_wait_for_lane));
    check_race(ending(algorithm, Mistake::lane_does_not_wait));
    check_race(ending(algorithm, Mistake::number_of_last_step));
  }
  check_race(ending(Algorithm::direct, Mistake::overwrites_after_reduce_scatter));
  check_race(ending(Algorithm::small, Mistake::same_copies));
}

TEST_CASE("kernels of all-reduces have no races between their threads", "[.all_reduce]") {
  const Ending ending = ending_with_checks([] {
    const OwnStream stream;
    const DeviceArray<float> values(integers(20'003, 0)), others(integers(20'003, 1));
    const DeviceArray<std::uint16_t> coded(std::vector<std::uint16_t>(3 * 20'480)), sum(20'480);
    for (const std::size_t begin : {0, 1})
      for (const std::size_t count : {1, 7, 8, 1'000, 20'002}) {
        cuda::add_from_peer(others.get() + begin, values.get() + begin, count, stream);
        for (const WireType wire : {WireType::bf16, WireType::fp16}) {
          cuda::encode(wire, values.get() + begin, coded.get(), count, stream);
          cuda::sum_coded(wire, values.get() + begin, coded.get(), 20'480, 3, sum.get(), count, stream);
          cuda::decode(wire, sum.get(), values.get() + begin, count, stream);
        }
      }
    cudaStreamSynchronize(stream);
  });
  CHECK(ending.text == "");
}
