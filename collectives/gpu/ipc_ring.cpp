#include "collectives/gpu/ipc_ring.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "collectives/gpu/ring_sum.h"
#include "collectives/gpu/stream_flags.h"
#include "collectives/ring/ring_schedule.h"
#include "kernels/base/split.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

constexpr std::size_t kRemembered = 1024;  // all-reduces, to find the stream's position

// Each rank's flags, in its own GPU memory: its stream reads them, its neighbours raise them.
struct Flags {
  alignas(128) std::uint32_t ready;     // the previous rank's number of completed exchanges, over all all-reduces
  alignas(128) std::uint32_t consumed;  // the number of this rank's all-reduces that the next rank has read
};

class IpcRing final : public PeerAllReduce {
 public:
  IpcRing(const World& world, cuda::SideLane& lane, const IpcRingOptions& options);
  ~IpcRing() override { leave(); }

  Range chunk(std::size_t count) const override { return chunk(count, next()); }
  std::uint64_t bytes_to_send(DeviceView values, Operation operation) const override;
  Place snapshot() override;

 private:
  // One all-reduce.
  struct Job {
    Operation operation;
    std::size_t segments;        // of every chunk
    std::uint32_t begun;         // value of "ready" when the array's own share is ready
    std::uint32_t number;        // value of "consumed" at its end
    std::uint32_t exchange = 0;  // the next one
  };
  enum class Pull { add, replace };

  std::size_t previous() const { return (rank() + size() - 1) % size(); }
  std::size_t next() const { return (rank() + 1) % size(); }
  Flags* flags(std::size_t rank) const { return reinterpret_cast<Flags*>(arena_of_flags_.at[rank]); }

  std::size_t segments_of(std::size_t count) const;
  Range chunk(std::size_t count, std::size_t number) const { return split_blocks(count, kLine, size(), number); }
  void put_array(const Array& array, Operation operation) override;
  void pull_chunk(const Array& array, Job& job, std::size_t chunk, Pull pull);
  void notify_next(std::uint32_t ready) { flags_.write(stream(), &flags(next())->ready, ready); }
  std::uint32_t ready_for(const Job& job, std::uint32_t exchange) const;
  std::uint32_t exchanges(const Job& job) const;
  void raise_own_flags() override;

  const IpcRingOptions options_;
  cuda::StreamFlags flags_;
  Arena arena_of_flags_;
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
      options_(options),
      arena_of_flags_(share(sizeof(Flags))) {}

void IpcRing::put_array(const Array& array, Operation operation) {
  Job job{
      .operation = operation, .segments = segments_of(array.count), .begun = exchanges_ + 1, .number = ++all_reduces_};
  exchanges_ = job.begun + exchanges(job);  // first, for abandon() after an error in between
  notify_next(job.begun);
  if (operation != Operation::all_gather)
    for (const RingStep step : reduce_scatter(rank(), size())) pull_chunk(array, job, step.receive, Pull::add);
  if (operation != Operation::reduce_scatter)
    for (const RingStep step : all_gather(rank(), size())) pull_chunk(array, job, step.receive, Pull::replace);
  flags_.write(stream(), &flags(previous())->consumed, job.number);
  flags_.wait(stream(), &flags(rank())->consumed, job.number);
  if (pending_.size() == kRemembered) pending_.pop_front();
  pending_.push_back(job);
}

void IpcRing::pull_chunk(const Array& array, Job& job, std::size_t chunk, Pull pull) {
  const Range whole = this->chunk(array.count, chunk);
  for (std::size_t segment = 0; segment < job.segments; ++segment, ++job.exchange) {
    const Range part = split_blocks(whole.size(), kLine, job.segments, segment);
    float* const own = array.of(rank()) + whole.begin + part.begin;
    const float* const theirs = array.of(previous()) + whole.begin + part.begin;
    flags_.wait(stream(), &flags(rank())->ready, ready_for(job, job.exchange));
    if (pull == Pull::add)
      cuda::add_from_peer(theirs, own, part.size(), stream());
    else if (part.size() > 0)
      cuda::check(cudaMemcpyAsync(own, theirs, part.size() * sizeof(float), cudaMemcpyDeviceToDevice, stream()));
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
  const std::size_t halves = job.operation == Operation::all_reduce ? 2 : 1;
  return static_cast<std::uint32_t>(halves * (size() - 1) * job.segments);
}

std::size_t IpcRing::segments_of(std::size_t count) const {
  const std::size_t largest_chunk = chunk(count, 0).size() * sizeof(float);
  return std::max<std::size_t>(1, (largest_chunk + options_.segment_bytes - 1) / options_.segment_bytes);
}

// The bytes that the next rank pulls: the same number as a ring over messages would send.
std::uint64_t IpcRing::bytes_to_send(DeviceView values, Operation operation) const {
  std::uint64_t floats = 0;
  const auto chunks = [&](std::size_t count) {
    const auto add = [&](const auto& steps) {
      for (const RingStep step : steps) floats += chunk(count, step.send).size();
    };
    if (operation != Operation::all_gather) add(reduce_scatter(rank(), size()));
    if (operation != Operation::reduce_scatter) add(all_gather(rank(), size()));
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
    const std::size_t steps = exchanges(job) / job.segments;
    for (std::uint32_t exchange = 0; exchange < exchanges(job); ++exchange)
      if (!cuda::StreamFlags::reached(flags.ready, ready_for(job, exchange))) {
        const std::size_t step = exchange / job.segments;
        const bool adds = job.operation != Operation::all_gather && step < size() - 1;
        return {{adds ? "reduce-scatter, ring step" : "all-gather, ring step", step + 1, steps},
                rank_in_job(previous())};
      }
    if (!cuda::StreamFlags::reached(flags.consumed, job.number))
      return {{"all have pulled, ring step", steps, steps}, rank_in_job(next())};
  }
  return {};
}

void IpcRing::raise_own_flags() {
  flags_.write(aside(), &flags(rank())->ready, exchanges_);
  flags_.write(aside(), &flags(rank())->consumed, all_reduces_);
}

}  // namespace

std::unique_ptr<PeerAllReduce> make_ipc_ring(const World& world, cuda::SideLane& lane, IpcRingOptions options) {
  auto ring = std::make_unique<IpcRing>(world, lane, options);
  ring->try_out();
  return ring;
}

}  // namespace annulus
