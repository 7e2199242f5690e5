#include "collectives/gpu/ipc_ring.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "collectives/gpu/pull_ring.h"
#include "collectives/ring/ring_schedule.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

constexpr std::size_t kRemembered = 1024;  // all-reduces, to find the stream's position

using Flags = PullRing::Flags;
using Job = PullRing::Job;

class IpcRing final : public PeerAllReduce {
 public:
  IpcRing(const World& world, cuda::SideLane& lane, const IpcRingOptions& options);
  ~IpcRing() override { leave(); }

  Range chunk(std::size_t count) const override { return ring_.chunk(count, next()); }
  std::uint64_t bytes_to_send(DeviceView values, Verb verb) const override;
  Place snapshot() override;

 private:
  std::size_t previous() const { return (rank() + size() - 1) % size(); }
  std::size_t next() const { return (rank() + 1) % size(); }
  Flags* flags(std::size_t rank) const { return reinterpret_cast<Flags*>(arena_of_flags_.at[rank]); }

  void put_array(const Array& array, Verb verb) override;
  void raise_own_flags() override;

  const Arena arena_of_flags_;
  const PullRing ring_;
  std::uint32_t exchanges_ = 0, all_reduces_ = 0;  // put on the stream so far
  std::deque<Job> pending_;                        // may not be complete yet
};

std::vector<std::size_t> neighbours(const World& world) {
  const auto rank = static_cast<std::size_t>(world.rank()), size = static_cast<std::size_t>(world.size());
  std::vector<std::size_t> both{(rank + size - 1) % size};
  if (size > 2) both.push_back((rank + 1) % size);
  return both;
}

IpcRing::IpcRing(const World& world, cuda::SideLane& lane, const IpcRingOptions& options)
    : PeerAllReduce(world, lane.stream(), neighbours(world), options.scratch_bytes),
      arena_of_flags_(share(sizeof(Flags))),
      ring_(rank(), size(), {flags(previous()), flags(rank()), flags(next())}, options.segment_bytes, lane.stream()) {}

void IpcRing::put_array(const Array& array, Verb verb) {
  const Job job = ring_.plan(array.count, verb, exchanges_, ++all_reduces_);
  exchanges_ = job.begun + ring_.exchanges(job);  // first, for abandon() after an error in between
  ring_.put(array.of(rank()), array.of(previous()), array.count, job);
  if (pending_.size() == kRemembered) pending_.pop_front();
  pending_.push_back(job);
}

// The bytes that the next rank pulls: the same number as a ring over messages would send.
std::uint64_t IpcRing::bytes_to_send(DeviceView values, Verb verb) const {
  std::uint64_t floats = 0;
  const auto chunks = [&](std::size_t count) {
    const auto add = [&](const auto& steps) {
      for (const RingStep step : steps) floats += ring_.chunk(count, step.send).size();
    };
    if (verb != Verb::all_gather) add(reduce_scatter(rank(), size()));
    if (verb != Verb::reduce_scatter) add(all_gather(rank(), size()));
  };
  const std::size_t whole = values.bytes / sizeof(float);
  const std::size_t piece = find(values) ? whole : scratch_bytes() / sizeof(float);
  for (std::size_t begin = 0; begin < whole; begin += piece) chunks(std::min(piece, whole - begin));
  return floats * sizeof(float);
}

// The stream can only be waiting for the first exchange that the flags do not let pass.
StreamAlgorithm::Place IpcRing::snapshot() {
  Flags flags;
  read_own(arena_of_flags_.own, &flags);
  for (; !pending_.empty(); pending_.pop_front()) {
    const Job& job = pending_.front();
    const std::size_t steps = ring_.exchanges(job) / job.segments;
    for (std::uint32_t exchange = 0; exchange < ring_.exchanges(job); ++exchange)
      if (!cuda::StreamFlags::reached(flags.ready, PullRing::ready_for(job, exchange))) {
        const std::size_t step = exchange / job.segments;
        const bool adds = job.verb != Verb::all_gather && step < size() - 1;
        return {{adds ? "reduce-scatter, ring step" : "all-gather, ring step", step + 1, steps},
                rank_in_job(previous())};
      }
    if (!cuda::StreamFlags::reached(flags.consumed, job.number))
      return {{"all have pulled, ring step", steps, steps}, rank_in_job(next())};
  }
  return {};
}

void IpcRing::raise_own_flags() {
  ring_.stream_flags().write(aside(), &flags(rank())->ready, exchanges_);
  ring_.stream_flags().write(aside(), &flags(rank())->consumed, all_reduces_);
}

}  // namespace

std::unique_ptr<PeerAllReduce> make_ipc_ring(const World& world, cuda::SideLane& lane, IpcRingOptions options) {
  auto ring = std::make_unique<IpcRing>(world, lane, options);
  ring->try_out();
  return ring;
}

}  // namespace annulus
