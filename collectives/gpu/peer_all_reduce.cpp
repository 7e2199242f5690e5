#include "collectives/gpu/peer_all_reduce.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::size_t kLargestCopy = 4096;  // in read_own()

std::vector<cuda::MemoryHandle> exchange_handles(const World& world, const cuda::MemoryHandle& own) {
  const std::vector<std::byte> bytes = world.gather(std::span<const std::byte>(own));
  std::vector<cuda::MemoryHandle> all(static_cast<std::size_t>(world.size()));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

}  // namespace

PeerAllReduce::PeerAllReduce(const World& world, cudaStream_t stream, const std::vector<std::size_t>& peers,
                             std::size_t scratch_bytes)
    : StreamAlgorithm(stream), world_(world.node()), peers_(peers), host_memory_(world.node()) {
  if (!world.one_node()) fail("an all-reduce over GPU memory requires all {} ranks on one node", world.size());
  const auto own_farewell = host_memory_.allocate(sizeof(Farewell));
  new (own_farewell.data()) Farewell;
  for (std::byte* address : host_memory_.everywhere(own_farewell))
    farewells_.push_back(reinterpret_cast<Farewell*>(address));
  world_.all_or_none([&] {
    aside_ = cuda::make_stream();
    host_copy_ = cuda::allocate_pinned(kLargestCopy);
  });
  scratch_ = allocate(scratch_bytes);
}

// Memory that peers have mapped must not be freed, so this waits for the peers. While an exception propagates they may
// never come: then the memory stays until the process ends, which is soon.
PeerAllReduce::~PeerAllReduce() {
  arenas_.clear();
  try {
    if (std::uncaught_exceptions() == 0)
      world_.barrier();
    else
      shared_.release();
  } catch (const Error&) {
    shared_.release();
  }
}

// All-reduces that are still on the stream, which nobody has waited for, may wait for ranks that never come. Raising
// this rank's flags to the highest awaited values lets the stream run to its end. The results are then invalid, so the
// other ranks are notified first, even if an error has ended the stream. The flags are raised repeatedly, because a
// rank that comes after all sets a flag back to its own progress; but not before the last writes are done, so that a
// stuck stream cannot fill up, which would block this thread.
void PeerAllReduce::end_waits() noexcept {
  farewell(rank()).given_up = true;
  if (cudaStreamQuery(aside()) == cudaErrorNotReady) return;
  try {
    raise_own_flags();
  } catch (const Error&) {  // then the streams have failed, or the timeout ends the process
  }
}

PeerAllReduce::Arena PeerAllReduce::share(std::size_t bytes) {
  Arena arena;
  cuda::MemoryHandle handle{};
  world_.all_or_none([&] {
    shared_->push_back(cuda::allocate_sharable(bytes));
    arena.own = shared_->back().view().slice(0, bytes);
    handle = cuda::handle_of(shared_->back());
  });
  const auto handles = exchange_handles(world_, handle);
  arena.at.resize(size());
  arena.at[rank()] = arena.own.address;
  world_.all_or_none([&] {
    for (const std::size_t peer : peers_) {
      arena.mapped.push_back(cuda::open_memory(handles[peer]));
      arena.at[peer] = arena.mapped.back().get();
    }
  });
  return arena;
}

DeviceView PeerAllReduce::allocate(std::size_t bytes) {
  return arenas_.emplace_back(share(bytes)).own;
}

std::optional<PeerAllReduce::Array> PeerAllReduce::find(DeviceView values) const {
  for (const Arena& arena : arenas_) {
    std::byte* const begin = arena.own.address;
    if (values.address < begin || values.address + values.bytes > begin + arena.own.bytes) continue;
    return Array{&arena, static_cast<std::size_t>(values.address - begin), values.bytes / sizeof(float)};
  }
  return std::nullopt;
}

void PeerAllReduce::put(DeviceView values, Verb verb) {
  if (values.bytes < sizeof(float)) return;
  if (const auto array = find(values))
    put_array(*array, verb);
  else if (verb == Verb::all_reduce)
    put_staged(values);
  else
    fail("a reduce-scatter or all-gather over GPU memory of an array that no other rank has mapped");
}

void PeerAllReduce::put_staged(DeviceView values) {
  while (values.bytes > 0) {
    const DeviceView piece = values.slice(0, std::min(values.bytes, scratch_.bytes));
    const auto copy = [&](DeviceView from, DeviceView to) {
      cuda::check(cudaMemcpyAsync(to.address, from.address, piece.bytes, cudaMemcpyDeviceToDevice, stream()));
    };
    copy(piece, scratch_);
    put_array(*find(scratch_.slice(0, piece.bytes)), Verb::all_reduce);
    copy(scratch_, piece);
    values = values.slice(piece.bytes, values.bytes - piece.bytes);
  }
}

// A rank that has left is about to report the reason and to end the job (src/main.cpp: 3 s later), which is more useful
// to the user than this error.
void PeerAllReduce::expect_all_there() {
  constexpr auto kLastWords = std::chrono::seconds(5);
  for (std::size_t rank = 0; rank < size(); ++rank)
    if (rank != this->rank() && farewell(rank).given_up) {
      std::this_thread::sleep_for(kLastWords);
      fail("rank {} has left an all-reduce before it was complete", rank_in_job(rank));
    }
}

void PeerAllReduce::try_out() {
  constexpr std::size_t kCount = 10'001;  // several blocks per chunk, the last incomplete
  world_.all_or_none([&] {
    const DeviceView first = scratch_.slice(0, std::min(scratch_.bytes, kCount * sizeof(float)));
    std::vector<float> values(first.bytes / sizeof(float), static_cast<float>(rank() + 1));
    cuda::check(cudaMemcpyAsync(first.address, values.data(), first.bytes, cudaMemcpyHostToDevice, stream()));
    put_array(*find(first), Verb::all_reduce);
    finish(kPatience);
    cuda::check(cudaMemcpyAsync(values.data(), first.address, first.bytes, cudaMemcpyDeviceToHost, stream()));
    cuda::check(cudaStreamSynchronize(stream()));
    const auto sum = static_cast<float>(size() * (size() + 1) / 2);
    if (std::ranges::any_of(values, [sum](float value) { return value != sum; }))
      fail("GPUs of one node do not see their neighbours' writes in a first all-reduce");
  });
}

// The ranks begin together because each all-reduce ends on all at the same time.
double PeerAllReduce::measure(double patience) {
  constexpr int kTimes = 6;
  double least = std::numeric_limits<double>::infinity();
  world_.all_or_none([&] {
    for (int i = 0; i < kTimes; ++i) {
      const double begun = now_seconds();
      put_array(*find(scratch_), Verb::all_reduce);
      finish(patience);
      least = std::min(least, now_seconds() - begun);
    }
  });
  return std::ranges::max(world_.gather(least));
}

// Waits for the stream. Throws Error after this many seconds, because another rank may have failed.
void PeerAllReduce::finish(double patience) {
  const double begun = now_seconds();
  while (cudaStreamQuery(stream()) == cudaErrorNotReady) {
    if (now_seconds() - begun > patience) fail("GPUs of one node do not wake each other in a first all-reduce");
    std::this_thread::yield();
  }
  cuda::check(cudaStreamSynchronize(stream()));
}

void PeerAllReduce::read_own(DeviceView memory, void* to) {
  std::byte* const copy = host_copy_.view().address;
  cuda::check(cudaMemcpyAsync(copy, memory.address, memory.bytes, cudaMemcpyDeviceToHost, aside()));
  cuda::check(cudaStreamSynchronize(aside()));
  std::memcpy(to, copy, memory.bytes);
}

}  // namespace annulus
