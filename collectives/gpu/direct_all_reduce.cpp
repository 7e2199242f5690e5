#include "collectives/gpu/direct_all_reduce.h"

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "collectives/gpu/direct_exchange.h"
#include "kernels/base/error.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

constexpr std::size_t kRemembered = 1024;  // all-reduces, to find the stream's position

using Phase = DirectExchange::Phase;
using Flags = DirectExchange::Flags;

constexpr std::array<const char*, DirectExchange::kPhases> kWaits{
    "all arrays are ready, step", "all chunks are summed, step", "all have pulled, step"};

class DirectAllReduce final : public PeerAllReduce {
 public:
  DirectAllReduce(const World& world, cuda::SideLane& lane, const DirectOptions& options);
  ~DirectAllReduce() override { leave(); }

  void put(DeviceView values, Verb verb) override;
  Range chunk(std::size_t count) const override { return exchange_.chunk(count, rank()); }
  std::uint64_t bytes_to_send(DeviceView values, Verb verb) const override;
  Place snapshot() override;

 private:
  struct Job {
    std::uint32_t number;
    std::span<const Phase> phases;  // in which this rank meets peers
  };

  bool small(DeviceView values, Verb verb) const {
    return verb == Verb::all_reduce && values.bytes <= options_.small_bytes;
  }

  void put_small(DeviceView values);
  void put_array(const Array& array, Verb verb) override;
  std::uint32_t begin(Verb verb);
  void raise_own_flags() override;

  const DirectOptions options_;
  const Arena arena_of_flags_;
  const DirectExchange exchange_;
  std::array<Arena, 2> copies_;                     // for small arrays; used alternately
  std::uint32_t all_reduces_ = 0, small_ones_ = 0;  // put on the stream so far
  std::deque<Job> pending_;                         // may not be complete yet
};

template <class T>
std::vector<T*> addresses(const std::vector<std::byte*>& at, std::size_t offset = 0) {
  std::vector<T*> all;
  for (std::byte* const address : at) all.push_back(reinterpret_cast<T*>(address + offset));
  return all;
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
      exchange_(rank(), addresses<Flags>(arena_of_flags_.at), lane.stream()),
      copies_{share(options.small_bytes), share(options.small_bytes)} {}

// Begins an all-reduce with the verb's phases, and returns its number.
std::uint32_t DirectAllReduce::begin(Verb verb) {
  ++all_reduces_;
  if (pending_.size() == kRemembered) pending_.pop_front();
  pending_.push_back({all_reduces_, DirectExchange::phases_of(verb)});
  return all_reduces_;
}

void DirectAllReduce::put(DeviceView values, Verb verb) {
  if (values.bytes < sizeof(float)) return;
  if (small(values, verb))
    put_small(values);
  else
    PeerAllReduce::put(values, verb);
}

void DirectAllReduce::put_small(DeviceView values) {
  const std::uint32_t number = begin(Verb::reduce_scatter);
  const Arena& copies = copies_[++small_ones_ % copies_.size()];
  exchange_.put_small(reinterpret_cast<float*>(values.address), addresses<float>(copies.at),
                      values.bytes / sizeof(float), number);
}

void DirectAllReduce::put_array(const Array& array, Verb verb) {
  exchange_.put(addresses<float>(array.arena->at, array.begin), array.count, verb, begin(verb));
}

// What the other ranks pull. A larger array elsewhere is all-reduced in pieces.
std::uint64_t DirectAllReduce::bytes_to_send(DeviceView values, Verb verb) const {
  const std::size_t others = size() - 1, whole = values.bytes / sizeof(float);
  if (small(values, verb)) return others * whole * sizeof(float);
  const std::size_t piece = find(values) ? whole : scratch_bytes() / sizeof(float);
  std::uint64_t floats = 0;
  for (std::size_t begin = 0; begin < whole; begin += piece) {
    const std::size_t count = std::min(piece, whole - begin), own = chunk(count).size();
    if (verb != Verb::all_gather) floats += count - own;
    if (verb != Verb::reduce_scatter) floats += others * own;
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
  auto* const own = reinterpret_cast<Flags*>(arena_of_flags_.own.address);
  for (auto& phase : own->of)
    for (std::size_t peer = 0; peer < size(); ++peer)
      exchange_.stream_flags().write(aside(), &phase[peer], all_reduces_);
}

}  // namespace

std::unique_ptr<PeerAllReduce> make_direct_all_reduce(const World& world, cuda::SideLane& lane, DirectOptions options) {
  auto direct = std::make_unique<DirectAllReduce>(world, lane, options);
  direct->try_out();
  return direct;
}

}  // namespace annulus
