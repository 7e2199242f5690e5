#include "collectives/gpu/direct_exchange.h"

#include <array>

#include "collectives/gpu/peer_all_reduce.h"

namespace annulus {

std::span<const DirectExchange::Phase> DirectExchange::phases_of(Verb verb) {
  static constexpr std::array<Phase, kPhases> kAll{kReady, kSummed, kRead};
  const std::span all(kAll);
  if (verb == Verb::all_reduce) return all;
  return verb == Verb::reduce_scatter ? all.first(1) : all.subspan(1);
}

Range DirectExchange::chunk(std::size_t count, std::size_t rank) const {
  return split_blocks(count, PeerAllReduce::kLine, size(), rank);
}

void DirectExchange::put(Arrays arrays, std::size_t count, Verb verb, std::uint32_t number) const {
  if (verb != Verb::all_gather) {
    meet(kReady, number);
    sum_own_chunk(arrays, count);
  }
  if (verb != Verb::reduce_scatter) {
    meet(kSummed, number);
    pull_other_chunks(arrays, count);
    meet(kRead, number);
  }
}

void DirectExchange::put_small(float* values, Arrays copies, std::size_t count, std::uint32_t number) const {
  cuda::check(cudaMemcpyAsync(copies[rank_], values, count * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
  meet(kReady, number);
  std::array<const float*, cuda::kMostPeers> arrays{};
  std::array<Range, cuda::kMostPeers> chunks{};
  for (std::size_t peer = 0; peer < size(); ++peer) {
    arrays[peer] = copies[peer];
    chunks[peer] = chunk(count, peer);
  }
  cuda::sum_chunks({arrays.data(), size()}, {chunks.data(), size()}, values, stream_);
}

void DirectExchange::meet(Phase phase, std::uint32_t number) const {
  std::array<std::uint32_t*, cuda::kMostPeers> raise{};
  std::array<const std::uint32_t*, cuda::kMostPeers> await{};
  std::size_t peers = 0;
  for (std::size_t turn = 1; turn < size(); ++turn, ++peers) {
    const std::size_t peer = (rank_ + turn) % size();
    raise[peers] = &flags_[peer]->of[phase][rank_];
    await[peers] = &flags_[rank_]->of[phase][peer];
  }
  stream_flags_.exchange(stream_, {raise.data(), peers}, {await.data(), peers}, number);
}

void DirectExchange::sum_own_chunk(Arrays arrays, std::size_t count) const {
  const Range own = chunk(count, rank_);
  std::array<const float*, cuda::kMostPeers> parts{};
  for (std::size_t turn = 0; turn < size(); ++turn) parts[turn] = arrays[(rank_ + turn) % size()] + own.begin;
  cuda::sum_arrays({parts.data(), size()}, arrays[rank_] + own.begin, own.size(), stream_);
}

void DirectExchange::pull_other_chunks(Arrays arrays, std::size_t count) const {
  for (std::size_t turn = 1; turn < size(); ++turn) {  // not all from the same rank at a time
    const std::size_t peer = (rank_ + turn) % size();
    const Range part = chunk(count, peer);
    if (part.size() > 0)
      cuda::check(cudaMemcpyAsync(arrays[rank_] + part.begin, arrays[peer] + part.begin, part.size() * sizeof(float),
                                  cudaMemcpyDeviceToDevice, stream_));
  }
}

}  // namespace annulus
