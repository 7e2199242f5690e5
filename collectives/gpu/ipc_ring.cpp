#include "collectives/gpu/ipc_ring.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <new>
#include <optional>
#include <thread>

#include "collectives/gpu/peer_memory.h"
#include "collectives/gpu/ring_sum.h"
#include "collectives/gpu/stream_flags.h"
#include "collectives/ring/ring_schedule.h"
#include "collectives/world/shared_memory.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/split.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

constexpr std::size_t kLine = 256 / sizeof(float);  // floats; never cut, for the sake of copy engines and kernels

constexpr std::size_t kRemembered = 1024;  // all-reduces, to find the stream's position

// Each rank's flags, in its own GPU memory: its stream reads them, its neighbours raise them.
struct Flags {
  alignas(128) std::uint32_t ready;     // the previous rank's number of completed exchanges, over all all-reduces
  alignas(128) std::uint32_t consumed;  // the number of this rank's all-reduces that the next rank has read
};

// Each rank's state in the host's memory.
struct Farewell {
  std::atomic<bool> given_up = false;  // has left all-reduces unfinished; set before it releases others' flags
};

class IpcRing final : public StreamAlgorithm {
 public:
  IpcRing(const World& world, cuda::SideLane& lane, const IpcRingOptions& options);
  ~IpcRing() override;

  void abandon() noexcept override;
  void put(DeviceView values) override;
  DeviceView allocate(std::size_t bytes) override;
  std::uint64_t bytes_to_send(DeviceView values) const override;
  void expect_all_there() override;
  Place snapshot() override;

  // Runs a first small all-reduce, to verify that the mapped memory can be used and that the ranks' streams wake each
  // other. Collective; throws Error on all ranks if it fails.
  void try_out();

 private:
  // Memory of this rank, and the corresponding memory of its previous rank.
  struct Arena {
    DeviceView own;
    cuda::PeerMemory previous;
  };
  struct Array {
    float *own, *previous;
    std::size_t count;
  };
  // One all-reduce.
  struct Job {
    std::size_t count;
    std::size_t segments;        // of every chunk
    std::uint32_t begun;         // value of "ready" when the array's own share is ready
    std::uint32_t number;        // value of "consumed" at its end
    std::uint32_t exchange = 0;  // the next one
  };
  enum class Pull { add, replace };

  std::size_t rank() const { return static_cast<std::size_t>(world_.rank()); }
  std::size_t size() const { return static_cast<std::size_t>(world_.size()); }
  std::size_t previous() const { return (rank() + size() - 1) % size(); }
  std::size_t next() const { return (rank() + 1) % size(); }
  int rank_in_job(std::size_t rank) const { return world_.rank_in_job(static_cast<int>(rank)); }

  std::size_t segments_of(std::size_t count) const;
  std::optional<Array> find(DeviceView values) const;
  void put_staged(DeviceView values);
  void put(const Array& array);
  void pull_chunk(const Array& array, Job& job, std::size_t chunk, Pull pull);
  void notify_next(std::uint32_t ready) { flags_.write(stream_, &of_next_->ready, ready); }
  std::uint32_t ready_for(const Job& job, std::uint32_t exchange) const;
  std::uint32_t exchanges(const Job& job) const;
  Flags read_own_flags();
  void raise_own_flags();

  Farewell& farewell(std::size_t rank) const { return *farewells_[rank]; }

  World world_;
  IpcRingOptions options_;
  cuda::StreamFlags flags_;
  cudaStream_t stream_;
  cuda::Stream aside_;  // never waits for another rank
  SharedMemory host_memory_;
  std::vector<Farewell*> farewells_;

  // Memory that other ranks have mapped.
  using Shared = std::deque<Buffer>;
  std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
  Buffer flags_read_;
  cuda::PeerMemory flags_of_previous_, flags_of_next_;
  Flags *own_ = nullptr, *of_previous_ = nullptr, *of_next_ = nullptr;

  std::deque<Arena> arenas_;
  DeviceView scratch_;
  std::uint32_t exchanges_ = 0, all_reduces_ = 0;  // put on the stream so far
  std::deque<Job> pending_;                        // may not be complete yet
};

std::vector<cuda::MemoryHandle> exchange_handles(const World& world, const cuda::MemoryHandle& own) {
  const std::vector<std::byte> bytes = world.gather(std::span<const std::byte>(own));
  std::vector<cuda::MemoryHandle> all(static_cast<std::size_t>(world.size()));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

IpcRing::IpcRing(const World& world, cuda::SideLane& lane, const IpcRingOptions& options)
    : world_(world.node()), options_(options), stream_(lane.stream()), host_memory_(world.node()) {
  if (!world.one_node()) fail("a ring over GPU memory requires all {} ranks on one node", world.size());
  const auto own_farewell = host_memory_.allocate(sizeof(Farewell));
  new (own_farewell.data()) Farewell;
  for (std::byte* address : host_memory_.everywhere(own_farewell))
    farewells_.push_back(reinterpret_cast<Farewell*>(address));

  cuda::MemoryHandle handle{};
  world_.all_or_none([&] {
    aside_ = cuda::make_stream();
    flags_read_ = cuda::allocate_pinned(sizeof(Flags));
    shared_->push_back(cuda::allocate_sharable(sizeof(Flags)));
    handle = cuda::handle_of(shared_->back());
  });
  const auto handles = exchange_handles(world_, handle);
  world_.all_or_none([&] {
    own_ = reinterpret_cast<Flags*>(shared_->front().view().address);
    flags_of_previous_ = cuda::open_memory(handles[previous()]);
    of_previous_ = reinterpret_cast<Flags*>(flags_of_previous_.get());
    if (next() != previous()) flags_of_next_ = cuda::open_memory(handles[next()]);
    of_next_ = next() == previous() ? of_previous_ : reinterpret_cast<Flags*>(flags_of_next_.get());
  });
  scratch_ = allocate(options_.scratch_bytes);
}

// Memory that others have mapped must not be freed, so this waits for them. While an exception propagates they may
// never come: then the memory stays until the process ends, which is soon.
IpcRing::~IpcRing() {
  if (std::uncaught_exceptions() > 0 || cudaStreamQuery(stream_) != cudaSuccess) abandon();
  arenas_.clear();
  flags_of_previous_.reset();
  flags_of_next_.reset();
  try {
    if (std::uncaught_exceptions() == 0)
      world_.barrier();
    else
      shared_.release();
  } catch (const Error&) {
    shared_.release();
  }
}

// Collective.
DeviceView IpcRing::allocate(std::size_t bytes) {
  Arena arena;
  cuda::MemoryHandle handle{};
  world_.all_or_none([&] {
    shared_->push_back(cuda::allocate_sharable(bytes));
    arena.own = shared_->back().view().slice(0, bytes);
    handle = cuda::handle_of(shared_->back());
  });
  const auto handles = exchange_handles(world_, handle);
  world_.all_or_none([&] { arena.previous = cuda::open_memory(handles[previous()]); });
  arenas_.push_back(std::move(arena));
  return arenas_.back().own;
}

std::optional<IpcRing::Array> IpcRing::find(DeviceView values) const {
  for (const Arena& arena : arenas_) {
    std::byte* const begin = arena.own.address;
    if (values.address < begin || values.address + values.bytes > begin + arena.own.bytes) continue;
    std::byte* const previous = arena.previous.get() + (values.address - begin);
    return Array{reinterpret_cast<float*>(values.address), reinterpret_cast<float*>(previous),
                 values.bytes / sizeof(float)};
  }
  return std::nullopt;
}

void IpcRing::put(DeviceView values) {
  if (values.bytes < sizeof(float)) return;
  if (const auto array = find(values))
    put(*array);
  else
    put_staged(values);
}

void IpcRing::put_staged(DeviceView values) {
  while (values.bytes > 0) {
    const DeviceView piece = values.slice(0, std::min(values.bytes, scratch_.bytes));
    const auto copy = [&](DeviceView from, DeviceView to) {
      cuda::check(cudaMemcpyAsync(to.address, from.address, piece.bytes, cudaMemcpyDeviceToDevice, stream_));
    };
    copy(piece, scratch_);
    put(*find(scratch_.slice(0, piece.bytes)));
    copy(scratch_, piece);
    values = values.slice(piece.bytes, values.bytes - piece.bytes);
  }
}

void IpcRing::put(const Array& array) {
  Job job{
      .count = array.count, .segments = segments_of(array.count), .begun = exchanges_ + 1, .number = ++all_reduces_};
  exchanges_ = job.begun + exchanges(job);  // first, for abandon() after an error in between
  notify_next(job.begun);
  for (const RingStep step : reduce_scatter(rank(), size())) pull_chunk(array, job, step.receive, Pull::add);
  for (const RingStep step : all_gather(rank(), size())) pull_chunk(array, job, step.receive, Pull::replace);
  flags_.write(stream_, &of_previous_->consumed, job.number);
  flags_.wait(stream_, &own_->consumed, job.number);
  if (pending_.size() == kRemembered) pending_.pop_front();
  pending_.push_back(job);
}

void IpcRing::pull_chunk(const Array& array, Job& job, std::size_t chunk, Pull pull) {
  const Range whole = split_blocks(array.count, kLine, size(), chunk);
  for (std::size_t segment = 0; segment < job.segments; ++segment, ++job.exchange) {
    const Range part = split_blocks(whole.size(), kLine, job.segments, segment);
    float* const own = array.own + whole.begin + part.begin;
    const float* const previous = array.previous + whole.begin + part.begin;
    flags_.wait(stream_, &own_->ready, ready_for(job, job.exchange));
    if (pull == Pull::add)
      cuda::add_from_peer(previous, own, part.size(), stream_);
    else if (part.size() > 0)
      cuda::check(cudaMemcpyAsync(own, previous, part.size() * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
    notify_next(job.begun + job.exchange + 1);
  }
}

// The data that an exchange pulls was ready from the start, or is the result of the previous rank's exchange a step
// earlier.
std::uint32_t IpcRing::ready_for(const Job& job, std::uint32_t exchange) const {
  const auto segments = static_cast<std::uint32_t>(job.segments);
  return exchange < segments ? job.begun : job.begun + exchange - segments + 1;
}

std::uint32_t IpcRing::exchanges(const Job& job) const {
  return static_cast<std::uint32_t>(2 * (size() - 1) * job.segments);
}

std::size_t IpcRing::segments_of(std::size_t count) const {
  const std::size_t largest_chunk = split_blocks(count, kLine, size(), 0).size() * sizeof(float);
  return std::max<std::size_t>(1, (largest_chunk + options_.segment_bytes - 1) / options_.segment_bytes);
}

// The bytes that the next rank pulls: the same number as a ring over messages would send.
std::uint64_t IpcRing::bytes_to_send(DeviceView values) const {
  std::uint64_t floats = 0;
  const auto chunks = [&](std::size_t count) {
    for (const RingStep step : reduce_scatter(rank(), size()))
      floats += split_blocks(count, kLine, size(), step.send).size();
    for (const RingStep step : all_gather(rank(), size()))
      floats += split_blocks(count, kLine, size(), step.send).size();
  };
  const std::size_t whole = values.bytes / sizeof(float);
  const std::size_t piece = find(values) ? whole : scratch_.bytes / sizeof(float);
  for (std::size_t begin = 0; begin < whole; begin += piece) chunks(std::min(piece, whole - begin));
  return floats * sizeof(float);
}

// A rank that has left is about to report why and to end the job (src/main.cpp: 3 s later), which is more useful to the
// user than this error.
void IpcRing::expect_all_there() {
  constexpr auto kLastWords = std::chrono::seconds(5);
  for (std::size_t rank = 0; rank < size(); ++rank)
    if (rank != this->rank() && farewell(rank).given_up) {
      std::this_thread::sleep_for(kLastWords);
      fail("rank {} has left an all-reduce before it was complete", rank_in_job(rank));
    }
}

void IpcRing::try_out() {
  constexpr double kSeconds = 10;
  world_.all_or_none([&] {
    const Array array = *find(scratch_.slice(0, (size() * kLine + 1) * sizeof(float)));
    std::vector<float> values(array.count, static_cast<float>(rank() + 1));
    const std::size_t bytes = array.count * sizeof(float);
    cuda::check(cudaMemcpyAsync(array.own, values.data(), bytes, cudaMemcpyHostToDevice, stream_));
    put(array);
    const double begun = now_seconds();
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
      if (now_seconds() - begun > kSeconds) fail("GPUs of one node do not wake each other in a first all-reduce");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    cuda::check(cudaMemcpyAsync(values.data(), array.own, bytes, cudaMemcpyDeviceToHost, stream_));
    cuda::check(cudaStreamSynchronize(stream_));
    const auto sum = static_cast<float>(size() * (size() + 1) / 2);
    if (std::ranges::any_of(values, [sum](float value) { return value != sum; }))
      fail("GPUs of one node do not see their neighbours' writes in a first all-reduce");
  });
}

// The stream can only be waiting for the first exchange that the flags do not let pass.
StreamAlgorithm::Place IpcRing::snapshot() {
  const Flags flags = read_own_flags();
  for (; !pending_.empty(); pending_.pop_front()) {
    const Job& job = pending_.front();
    for (std::uint32_t exchange = 0; exchange < exchanges(job); ++exchange)
      if (!cuda::StreamFlags::reached(flags.ready, ready_for(job, exchange))) {
        const std::size_t step = exchange / job.segments;
        const bool adds = step < size() - 1;
        return {{adds ? "reduce-scatter, ring step" : "all-gather, ring step", step + 1, 2 * (size() - 1)},
                rank_in_job(previous())};
      }
    if (!cuda::StreamFlags::reached(flags.consumed, job.number))
      return {{"all have pulled, ring step", 2 * (size() - 1), 2 * (size() - 1)}, rank_in_job(next())};
  }
  return {};
}

Flags IpcRing::read_own_flags() {
  cuda::check(cudaMemcpyAsync(flags_read_.view().address, own_, sizeof(Flags), cudaMemcpyDeviceToHost, aside_.get()));
  cuda::check(cudaStreamSynchronize(aside_.get()));
  Flags flags;
  std::memcpy(&flags, flags_read_.view().address, sizeof(Flags));
  return flags;
}

// All-reduces that are still on the stream, which nobody has waited for, may wait for ranks that never come. Raising
// this rank's flags to the highest awaited values lets the stream run to its end. Its results are then invalid, so the
// other ranks are notified first; also if the stream has ended by an error of its own. The flags are raised repeatedly,
// because a rank that comes after all sets a flag back to its own progress.
void IpcRing::abandon() noexcept {
  farewell(rank()).given_up = true;
  cuda::drain_or_exit(stream_, [this] { raise_own_flags(); });
}

// Does nothing until the last writes are done, so that a stuck stream cannot fill up, which would block this thread.
void IpcRing::raise_own_flags() {
  if (cudaStreamQuery(aside_.get()) == cudaErrorNotReady) return;
  try {
    flags_.write(aside_.get(), &own_->ready, exchanges_);
    flags_.write(aside_.get(), &own_->consumed, all_reduces_);
  } catch (const Error&) {  // then the streams have failed, or the timeout ends the process
  }
}

}  // namespace

std::unique_ptr<StreamAlgorithm> make_ipc_ring(const World& world, cuda::SideLane& lane, IpcRingOptions options) {
  auto ring = std::make_unique<IpcRing>(world, lane, options);
  ring->try_out();
  return ring;
}

}  // namespace annulus
