#include "collectives/gpu/direct_all_reduce.h"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "collectives/gpu/direct_sum.h"
#include "collectives/gpu/stream_flags.h"
#include "kernels/base/error.h"
#include "kernels/base/split.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

constexpr std::size_t kRemembered = 1024;  // all-reduces, to find the stream's position

enum Phase { kReady, kSummed, kRead, kPhases };
constexpr std::array<const char*, kPhases> kWaits{"all arrays are ready, step", "all chunks are summed, step",
                                                  "all have pulled, step"};

// Each rank's flags: the number of the last all-reduce in which a peer reached a phase.
struct Flags {
  std::uint32_t of[kPhases][cuda::kMostPeers];
};

class DirectAllReduce final : public PeerAllReduce {
 public:
  DirectAllReduce(const World& world, cuda::SideLane& lane, const DirectOptions& options);
  ~DirectAllReduce() override { leave(); }

  void put(DeviceView values) override;
  std::uint64_t bytes_to_send(DeviceView values) const override;
  Place snapshot() override;

 private:
  struct Job {
    std::uint32_t number;
    bool small;
  };

  Flags* flags(std::size_t rank) const { return reinterpret_cast<Flags*>(arena_of_flags_.at[rank]); }
  bool small(DeviceView values) const { return values.bytes <= options_.small_bytes; }
  Range chunk(std::size_t count, std::size_t number) const { return split_blocks(count, kLine, size(), number); }

  void put_small(DeviceView values);
  void put_array(const Array& array) override;
  void begin(bool small);
  void meet(Phase phase);  // raises this rank's flags on all peers, and awaits theirs
  void raise_own_flags() override;

  const DirectOptions options_;
  cuda::StreamFlags flags_;
  Arena arena_of_flags_;
  std::array<Arena, 2> copies_;                     // of small arrays; used alternately
  std::uint32_t all_reduces_ = 0, small_ones_ = 0;  // put on the stream so far
  std::deque<Job> pending_;                         // may not be complete yet
};

std::vector<std::size_t> others(const World& world) {
  const auto rank = static_cast<std::size_t>(world.rank()), size = static_cast<std::size_t>(world.size());
  if (size > cuda::kMostPeers)
    fail("a direct all-reduce is for at most {} ranks, and these are {}", cuda::kMostPeers, size);
  std::vector<std::size_t> all;
  for (std::size_t turn = 1; turn < size; ++turn) all.push_back((rank + turn) % size);
  return all;
}

DirectAllReduce::DirectAllReduce(const World& world, cuda::SideLane& lane, const DirectOptions& options)
    : PeerAllReduce(world, lane.stream(), others(world), options.scratch_bytes),
      options_(options),
      arena_of_flags_(share(sizeof(Flags))),
      copies_{share(options.small_bytes), share(options.small_bytes)} {}

void DirectAllReduce::begin(bool small) {
  ++all_reduces_;
  if (pending_.size() == kRemembered) pending_.pop_front();
  pending_.push_back({all_reduces_, small});
}

void DirectAllReduce::meet(Phase phase) {
  std::array<std::uint32_t*, cuda::kMostPeers> raise{};
  std::array<const std::uint32_t*, cuda::kMostPeers> await{};
  std::size_t peers = 0;
  for (std::size_t turn = 1; turn < size(); ++turn, ++peers) {
    const std::size_t peer = (rank() + turn) % size();
    raise[peers] = &flags(peer)->of[phase][rank()];
    await[peers] = &flags(rank())->of[phase][peer];
  }
  flags_.exchange(stream(), {raise.data(), peers}, {await.data(), peers}, all_reduces_);
}

void DirectAllReduce::put(DeviceView values) {
  if (values.bytes < sizeof(float)) return;
  if (small(values))
    put_small(values);
  else
    PeerAllReduce::put(values);
}

void DirectAllReduce::put_small(DeviceView values) {
  begin(true);
  const Arena& copies = copies_[++small_ones_ % copies_.size()];
  cuda::check(cudaMemcpyAsync(copies.own.address, values.address, values.bytes, cudaMemcpyDeviceToDevice, stream()));
  meet(kReady);
  std::array<const float*, cuda::kMostPeers> arrays{};
  std::array<Range, cuda::kMostPeers> chunks{};
  for (std::size_t peer = 0; peer < size(); ++peer) {
    arrays[peer] = reinterpret_cast<const float*>(copies.at[peer]);
    chunks[peer] = chunk(values.bytes / sizeof(float), peer);
  }
  cuda::sum_chunks({arrays.data(), size()}, {chunks.data(), size()}, reinterpret_cast<float*>(values.address),
                   stream());
}

void DirectAllReduce::put_array(const Array& array) {
  begin(false);
  meet(kReady);
  const Range own = chunk(array.count, rank());
  std::array<const float*, cuda::kMostPeers> arrays{};
  for (std::size_t turn = 0; turn < size(); ++turn) arrays[turn] = array.of((rank() + turn) % size()) + own.begin;
  cuda::sum_arrays({arrays.data(), size()}, array.of(rank()) + own.begin, own.size(), stream());
  meet(kSummed);
  for (std::size_t turn = 1; turn < size(); ++turn) {  // not all from the same rank at a time
    const std::size_t peer = (rank() + turn) % size();
    const Range part = chunk(array.count, peer);
    if (part.size() > 0)
      cuda::check(cudaMemcpyAsync(array.of(rank()) + part.begin, array.of(peer) + part.begin,
                                  part.size() * sizeof(float), cudaMemcpyDeviceToDevice, stream()));
  }
  meet(kRead);
}

// What the other ranks pull. A larger array elsewhere is all-reduced in pieces.
std::uint64_t DirectAllReduce::bytes_to_send(DeviceView values) const {
  const std::size_t others = size() - 1, whole = values.bytes / sizeof(float);
  if (small(values)) return others * whole * sizeof(float);
  const std::size_t piece = find(values) ? whole : scratch_bytes() / sizeof(float);
  std::uint64_t floats = 0;
  for (std::size_t begin = 0; begin < whole; begin += piece) {
    const std::size_t count = std::min(piece, whole - begin), own = chunk(count, rank()).size();
    floats += count - own + others * own;
  }
  return floats * sizeof(float);
}

// The stream can only be waiting for the first flag that is not up.
StreamAlgorithm::Place DirectAllReduce::snapshot() {
  Flags flags;
  read_own(arena_of_flags_.own, &flags);
  for (; !pending_.empty(); pending_.pop_front()) {
    const std::size_t phases = pending_.front().small ? 1 : kPhases;
    for (std::size_t phase = 0; phase < phases; ++phase)
      for (std::size_t peer = 0; peer < size(); ++peer)
        if (peer != rank() && !cuda::StreamFlags::reached(flags.of[phase][peer], pending_.front().number))
          return {{kWaits[phase], phase + 1, phases}, rank_in_job(peer)};
  }
  return {};
}

void DirectAllReduce::raise_own_flags() {
  for (auto& phase : flags(rank())->of)
    for (std::size_t peer = 0; peer < size(); ++peer) flags_.write(aside(), &phase[peer], all_reduces_);
}

}  // namespace

std::unique_ptr<PeerAllReduce> make_direct_all_reduce(const World& world, cuda::SideLane& lane, DirectOptions options) {
  auto direct = std::make_unique<DirectAllReduce>(world, lane, options);
  direct->try_out();
  return direct;
}

}  // namespace annulus
