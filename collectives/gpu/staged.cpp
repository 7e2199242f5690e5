#include "collectives/gpu/staged.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/all_reduce_worker.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/cuda/runtime/compute_lane.h"
#include "kernels/cuda/runtime/side_lane.h"

namespace annulus {
namespace {

// Host memory pinned for direct copies to and from a GPU.
struct Unpin {
  void operator()(std::byte* memory) const { cudaHostUnregister(memory); }
};
using Pinned = std::unique_ptr<std::byte, Unpin>;

class StagedAllReduce final : public AllReduceAlgorithm, public LaneOrder {
 public:
  StagedAllReduce(Device& device, HostAllReduce host, const StagedOptions& options);
  ~StagedAllReduce() override;

  std::span<std::byte> allocate(std::size_t bytes, Memory memory) override;

  void begin(DeviceView values, const Collective& collective) override;  // queues the copies to the host
  // Returns when the last copy back is queued.
  void run(std::span<float> values, const Collective& collective) override;
  void join(std::uint64_t number) override;
  bool done(std::uint64_t number) override { return cuda::done(done_[number % kRemembered].get()); }

  Range chunk(std::size_t count) const override { return host_->chunk(count); }
  std::uint64_t bytes_sent() const override { return host_->bytes_sent(); }

 private:
  static constexpr std::uint64_t kRemembered = 256;  // all-reduces; later ones reuse the events of older ones

  // Device memory and the pinned counterpart.
  struct Mirror {
    DeviceView device;
    std::byte* host;
  };
  struct Piece {
    DeviceView device;
    std::span<float> host;
    cuda::Event arrived;
  };
  using Pieces = std::deque<Piece>;

  std::byte* pinned(std::size_t bytes);
  std::byte* mirror(DeviceView values) const;  // null if it has none
  DeviceView own_chunk(DeviceView values) const;
  void copy_to_host(const Piece& piece);
  void copy_to_device(DeviceView device, const std::byte* host);
  void sum_piece(const Piece& piece, DeviceView wanted, bool exact);
  void sum_through_scratch(DeviceView values, bool exact);
  void gather(DeviceView values, const Pieces& own);
  void await(cudaEvent_t event);
  cuda::Event event();

  const int number_;  // the GPU's
  Device& device_;
  StagedOptions options_;
  std::unique_ptr<AllReduceAlgorithm> host_;
  std::vector<Pinned> pinned_;
  std::deque<Buffer> buffers_;
  std::vector<Mirror> mirrors_;
  std::byte* scratch_;
  cuda::Stream to_host_, from_host_;
  cuda::Event ready_;
  std::vector<cuda::Event> done_;
  std::uint64_t completed_ = 0;

  std::mutex mutex_;  // guards what follows
  std::deque<Pieces> begun_;
  std::vector<cuda::Event> spare_;
};

StagedAllReduce::StagedAllReduce(Device& device, HostAllReduce host, const StagedOptions& options)
    : AllReduceAlgorithm(
          {fmt::format("{}, in pieces of {} bytes", host.algorithm->info().order, options.piece_bytes),
           host.algorithm->info().crossover, host.algorithm->info().wire, host.algorithm->info().all_verbs},
          host.algorithm->context()),
      number_(cuda::current_device()),
      device_(device),
      options_(options),
      host_(std::move(host.algorithm)),
      scratch_(pinned(options.piece_bytes)),
      to_host_(cuda::make_stream(true)),
      from_host_(cuda::make_stream(true)),
      ready_(cuda::make_event()),
      done_(kRemembered) {
  for (cuda::Event& done : done_) done = cuda::make_event();
}

// The streams wait for nothing but the lane and each other.
StagedAllReduce::~StagedAllReduce() {
  cudaStreamSynchronize(to_host_.get());
  cudaStreamSynchronize(from_host_.get());
}

// Rounds up to whole pages, because CUDA pins no page twice.
std::byte* StagedAllReduce::pinned(std::size_t bytes) {
  const std::span<std::byte> memory =
      host_->allocate((std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage, Memory::own);
  cuda::check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault));
  pinned_.emplace_back(memory.data());
  return memory.data();
}

std::span<std::byte> StagedAllReduce::allocate(std::size_t bytes, Memory) {
  const DeviceView device = buffers_.emplace_back(cuda::allocate_device(bytes)).view();
  mirrors_.push_back({device, pinned(bytes)});
  return {device.address, device.bytes};
}

std::byte* StagedAllReduce::mirror(DeviceView values) const {
  for (const auto& [device, host] : mirrors_)
    if (values.address >= device.address && values.address + values.bytes <= device.address + device.bytes)
      return host + (values.address - device.address);
  return nullptr;
}

DeviceView StagedAllReduce::own_chunk(DeviceView values) const {
  const Range own = chunk(values.bytes / sizeof(float));
  return values.slice(own.begin * sizeof(float), own.size() * sizeof(float));
}

// Even a rank whose chunk is empty has a piece: with its event, the lane's earlier work on the array is done.
void StagedAllReduce::begin(DeviceView values, const Collective& collective) {
  Pieces pieces;
  cuda::check(cudaEventRecord(ready_.get(), cuda::compute_lane(device_)));
  cuda::check(cudaStreamWaitEvent(to_host_.get(), ready_.get()));
  const DeviceView sent = collective.verb == Verb::all_gather ? own_chunk(values) : values;
  if (std::byte* const host = mirror(sent))
    for (std::size_t begin = 0; begin < sent.bytes || pieces.empty(); begin += options_.piece_bytes) {
      const DeviceView piece = sent.slice(begin, std::min(options_.piece_bytes, sent.bytes - begin));
      copy_to_host(pieces.emplace_back(piece, floats({host + begin, piece.bytes}), event()));
    }
  const std::scoped_lock lock(mutex_);
  begun_.push_back(std::move(pieces));
}

void StagedAllReduce::run(std::span<float> array, const Collective& collective) {
  cuda::check(cudaSetDevice(number_));  // the current device is per thread
  Pieces pieces;
  {
    const std::scoped_lock lock(mutex_);
    pieces = std::move(begun_.front());
    begun_.pop_front();
  }
  const DeviceView values = view_of(array);
  if (collective.verb == Verb::all_gather) {
    gather(values, pieces);
  } else {
    const DeviceView wanted = collective.verb == Verb::reduce_scatter ? own_chunk(values) : values;
    if (pieces.empty()) sum_through_scratch(values, collective.exact);
    for (const Piece& piece : pieces) sum_piece(piece, wanted, collective.exact);
  }
  cuda::check(cudaEventRecord(done_[++completed_ % kRemembered].get(), from_host_.get()));
  const std::scoped_lock lock(mutex_);
  for (Piece& piece : pieces) spare_.push_back(std::move(piece.arrived));
}

// Pieces go in sequence, because they share the scratch. The copies wait for the lane's work at the time of begin().
void StagedAllReduce::sum_through_scratch(DeviceView values, bool exact) {
  Piece piece{{}, {}, event()};
  for (std::size_t begin = 0; begin < values.bytes; begin += options_.piece_bytes) {
    piece.device = values.slice(begin, std::min(options_.piece_bytes, values.bytes - begin));
    piece.host = floats({scratch_, piece.device.bytes});
    copy_to_host(piece);
    sum_piece(piece, values, exact);
    cuda::check(cudaEventRecord(piece.arrived.get(), from_host_.get()));
    await(piece.arrived.get());
  }
  const std::scoped_lock lock(mutex_);
  spare_.push_back(std::move(piece.arrived));
}

void StagedAllReduce::copy_to_host(const Piece& piece) {
  cuda::check(cudaMemcpyAsync(piece.host.data(), piece.device.address, piece.device.bytes, cudaMemcpyDeviceToHost,
                              to_host_.get()));
  cuda::check(cudaEventRecord(piece.arrived.get(), to_host_.get()));
}

void StagedAllReduce::copy_to_device(DeviceView device, const std::byte* host) {
  cuda::check(cudaMemcpyAsync(device.address, host, device.bytes, cudaMemcpyHostToDevice, from_host_.get()));
}

// A reduce-scatter sums pieces whole, like an all-reduce, for the same bits: the host's chunks of a piece are not those
// of the array. Only the `wanted` values are copied back.
void StagedAllReduce::sum_piece(const Piece& piece, DeviceView wanted, bool exact) {
  await(piece.arrived.get());
  host_->run(piece.host, {Verb::all_reduce, exact});
  std::byte* const begin = std::max(piece.device.address, wanted.address);
  std::byte* const end = std::min(piece.device.address + piece.device.bytes, wanted.address + wanted.bytes);
  if (begin >= end) return;
  const std::byte* const host = view_of(piece.host).address + (begin - piece.device.address);
  copy_to_device({begin, static_cast<std::size_t>(end - begin)}, host);
}

void StagedAllReduce::gather(DeviceView values, const Pieces& own) {
  for (const Piece& piece : own) await(piece.arrived.get());
  std::byte* const host = mirror(values);
  host_->run(floats({host, values.bytes}), {Verb::all_gather});
  copy_to_device(values, host);
}

void StagedAllReduce::await(cudaEvent_t event) {
  const TraceSpan span(lane(), "wait for copy");
  for (int polls = 0; !cuda::done(event); ++polls) context()->backoff.pause(polls);
}

void StagedAllReduce::join(std::uint64_t number) {
  cuda::check(cudaStreamWaitEvent(cuda::compute_lane(device_), done_[number % kRemembered].get()));
}

cuda::Event StagedAllReduce::event() {
  const std::scoped_lock lock(mutex_);
  if (spare_.empty()) return cuda::make_event();
  cuda::Event event = std::move(spare_.back());
  spare_.pop_back();
  return event;
}

}  // namespace

std::unique_ptr<AllReduce> make_staged(Device& device, HostAllReduce host, StagedOptions options) {
  std::string name =
      fmt::format("{}, staged through pinned memory in pieces of {} KiB", host.name, options.piece_bytes / 1024);
  std::string why = host.why;
  auto staged = std::make_unique<StagedAllReduce>(device, std::move(host), options);
  LaneOrder* const order = staged.get();
  return std::make_unique<AllReduceWorker>(std::move(staged), std::move(name), std::move(why), 0, order);
}

}  // namespace annulus
