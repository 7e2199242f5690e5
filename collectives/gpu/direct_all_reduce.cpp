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
// Of an all-reduce; its halves are the first phase and the other two, and a small one has only the first.
constexpr std::array<Phase, kPhases> kAllPhases{kReady, kSummed, kRead};

// Each rank's flags: the number of the last all-reduce in which a peer reached a phase.
struct Flags {
  std::uint32_t of[kPhases][cuda::kMostPeers];
};

class DirectAllReduce final : public PeerAllReduce {
 public:
  DirectAllReduce(const World& world, cuda::SideLane& lane, const DirectOptions& options);
  ~DirectAllReduce() override { leave(); }

  void put(DeviceView values, Operation operation) override;
  Range chunk(std::size_t count) const override { return chunk(count, rank()); }
  std::uint64_t bytes_to_send(DeviceView values, Operation operation) const override;
  Place snapshot() override;

 private:
  struct Job {
    std::uint32_t number;
    std::span<const Phase> phases;  // those in which it meets its peers
  };

  Flags* flags(std::size_t rank) const { return reinterpret_cast<Flags*>(arena_of_flags_.at[rank]); }
  bool small(DeviceView values, Operation operation) const {
    return operation == Operation::all_reduce && values.bytes <= options_.small_bytes;
  }
  Range chunk(std::size_t count, std::size_t number) const { return split_blocks(count, kLine, size(), number); }

  void put_small(DeviceView values);
  void put_array(const Array& array, Operation operation) override;
  void begin(std::span<const Phase> phases);
  void sum_own_chunk(const Array& array);
  void pull_other_chunks(const Array& array);
  void meet(Phase phase);  // raises this rank's flags on all peers, and awaits theirs
  void raise_own_flags() override;

  const DirectOptions options_;
  cuda::StreamFlags flags_;
  Arena arena_of_flags_;
  std::array<Arena, 2> copies_;                     // of small arrays; used alternately
  std::uint32_t all_reduces_ = 0, small_ones_ = 0;  // put on the stream so far
  std::deque<Job> pending_;                         // may not be complete yet
};

std::span<const Phase> phases_of(StreamAlgorithm::Operation operation) {
  const std::span all(kAllPhases);
  if (operation == StreamAlgorithm::Operation::all_reduce) return all;
  return operation == StreamAlgorithm::Operation::reduce_scatter ? all.first(1) : all.subspan(1);
}

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

void DirectAllReduce::begin(std::span<const Phase> phases) {
  ++all_reduces_;
  if (pending_.size() == kRemembered) pending_.pop_front();
  pending_.push_back({all_reduces_, phases});
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

void DirectAllReduce::put(DeviceView values, Operation operation) {
  if (values.bytes < sizeof(float)) return;
  if (small(values, operation))
    put_small(values);
  else
    PeerAllReduce::put(values, operation);
}

void DirectAllReduce::put_small(DeviceView values) {
  begin(phases_of(Operation::reduce_scatter));
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

void DirectAllReduce::put_array(const Array& array, Operation operation) {
  begin(phases_of(operation));
  if (operation != Operation::all_gather) {
    meet(kReady);
    sum_own_chunk(array);
  }
  if (operation != Operation::reduce_scatter) {
    meet(kSummed);
    pull_other_chunks(array);
    meet(kRead);
  }
}

void DirectAllReduce::sum_own_chunk(const Array& array) {
  const Range own = chunk(array.count);
  std::array<const float*, cuda::kMostPeers> arrays{};
  for (std::size_t turn = 0; turn < size(); ++turn) arrays[turn] = array.of((rank() + turn) % size()) + own.begin;
  cuda::sum_arrays({arrays.data(), size()}, array.of(rank()) + own.begin, own.size(), stream());
}

void DirectAllReduce::pull_other_chunks(const Array& array) {
  for (std::size_t turn = 1; turn < size(); ++turn) {  // not all from the same rank at a time
    const std::size_t peer = (rank() + turn) % size();
    const Range part = chunk(array.count, peer);
    if (part.size() > 0)
      cuda::check(cudaMemcpyAsync(array.of(rank()) + part.begin, array.of(peer) + part.begin,
                                  part.size() * sizeof(float), cudaMemcpyDeviceToDevice, stream()));
  }
}

// What the other ranks pull. A larger array elsewhere is all-reduced in pieces.
std::uint64_t DirectAllReduce::bytes_to_send(DeviceView values, Operation operation) const {
  const std::size_t others = size() - 1, whole = values.bytes / sizeof(float);
  if (small(values, operation)) return others * whole * sizeof(float);
  const std::size_t piece = find(values) ? whole : scratch_bytes() / sizeof(float);
  std::uint64_t floats = 0;
  for (std::size_t begin = 0; begin < whole; begin += piece) {
    const std::size_t count = std::min(piece, whole - begin), own = chunk(count).size();
    if (operation != Operation::all_gather) floats += count - own;
    if (operation != Operation::reduce_scatter) floats += others * own;
  }
  return floats * sizeof(float);
}

// The stream can only be waiting for the first flag that is not up.
StreamAlgorithm::Place DirectAllReduce::snapshot() {
  Flags flags;
  read_own(arena_of_flags_.own, &flags);
  for (; !pending_.empty(); pending_.pop_front()) {
    const auto& [number, phases] = pending_.front();
    for (std::size_t step = 0; step < phases.size(); ++step)
      for (std::size_t peer = 0; peer < size(); ++peer)
        if (peer != rank() && !cuda::StreamFlags::reached(flags.of[phases[step]][peer], number))
          return {{kWaits[phases[step]], step + 1, phases.size()}, rank_in_job(peer)};
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
