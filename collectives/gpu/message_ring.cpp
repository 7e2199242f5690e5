#include "collectives/gpu/message_ring.h"

#include <deque>
#include <mutex>
#include <vector>

#include "collectives/all_reduce_worker.h"
#include "collectives/gpu/ring_sum.h"
#include "collectives/gpu/wire_codec.h"
#include "collectives/ring/mpi_link.h"
#include "collectives/ring/ring.h"
#include "kernels/base/error.h"
#include "kernels/cuda/runtime/compute_lane.h"
#include "kernels/cuda/runtime/side_lane.h"

// Open MPI, MPICH, MVAPICH and their descendants have this function; their headers differ, and may belong to another
// version. Null if the library lacks it.
extern "C" [[gnu::weak]] int MPIX_Query_cuda_support();

namespace annulus {
namespace {

// Not measured yet. A message of this size takes 80 us on a link with 100 Gbit/s, adding it takes a few.
constexpr RingOptions kOptions{.segment_bytes = 1 << 20, .in_flight = 4};

// The stream for the ring's work on the GPU; the ring's thread waits for it.
class RingStream {
 public:
  explicit RingStream(std::shared_ptr<AllReduceContext> context)
      : context_(std::move(context)), stream_(cuda::make_stream(true)), done_(cuda::make_event()) {}

  cudaStream_t get() const { return stream_.get(); }
  void finish() const {
    cuda::check(cudaEventRecord(done_.get(), stream_.get()));
    for (int polls = 0; !cuda::done(done_.get()); ++polls) context_->backoff.pause(polls);
  }

 private:
  std::shared_ptr<AllReduceContext> context_;
  cuda::Stream stream_;
  cuda::Event done_;
};

// Allocates memory beforehand: the worker's thread must not allocate, because that waits for the device, which CUDA
// forbids while another thread captures a lane.
class GpuRingMemory final : public RingMemory {
 public:
  explicit GpuRingMemory(std::shared_ptr<const RingStream> stream)
      : stream_(std::move(stream)), scratch_(cuda::allocate_device(kOptions.in_flight * kOptions.segment_bytes)) {}

  std::span<std::byte> allocate(std::size_t bytes) override {
    const DeviceView memory = memory_.emplace_back(cuda::allocate_device(bytes)).view();
    return {memory.address, memory.bytes};
  }
  std::span<float> scratch(std::size_t count) override {
    return {reinterpret_cast<float*>(scratch_.view().address), count};
  }
  void add(std::span<float> to, std::span<const std::byte> bytes) override {
    cuda::add_from_peer(reinterpret_cast<const float*>(bytes.data()), to.data(), to.size(), stream_->get());
    stream_->finish();
  }
  void copy(std::span<float> to, std::span<const std::byte> bytes) override {
    cuda::check(cudaMemcpyAsync(to.data(), bytes.data(), bytes.size(), cudaMemcpyDeviceToDevice, stream_->get()));
    stream_->finish();
  }

 private:
  std::shared_ptr<const RingStream> stream_;
  Buffer scratch_;  // for all segments in flight
  std::deque<Buffer> memory_;
};

// CompressedLink for values in GPU memory.
class GpuCompressedLink final : public RingLink {
 public:
  GpuCompressedLink(std::unique_ptr<RingLink> link, WireType wire, std::shared_ptr<const RingStream> stream)
      : wire_(wire),
        stream_(std::move(stream)),
        coded_(cuda::allocate_device((2 * kOptions.in_flight + 1) * kSlot)),
        landings_(kOptions.in_flight),
        link_(std::move(link)) {}

  void post(std::span<const std::byte> to_next, std::span<std::byte> landing) override {
    const std::size_t number = posted_++ % kOptions.in_flight;
    const std::size_t count = to_next.size() / sizeof(float);
    landings_[number] = landing;
    cuda::encode(wire_, reinterpret_cast<const float*>(to_next.data()), numbers(2 * number), count, stream_->get());
    stream_->finish();
    link_->post(slot(2 * number).first(coded_bytes(wire_, count)),
                slot(2 * number + 1).first(coded_bytes(wire_, landing.size() / sizeof(float))));
  }

  std::span<const std::byte> collect() override {
    const std::size_t number = collected_++ % kOptions.in_flight;
    const std::span<std::byte> landing = landings_[number];
    link_->collect();
    cuda::decode(wire_, numbers(2 * number + 1), reinterpret_cast<float*>(landing.data()),
                 landing.size() / sizeof(float), stream_->get());
    stream_->finish();
    return landing;
  }

  WireType wire() const override { return wire_; }
  std::size_t bytes_on_wire(std::size_t bytes) const override { return coded_bytes(wire_, bytes / sizeof(float)); }
  void round(std::span<float> values) const override {
    std::uint16_t* const coded = numbers(2 * kOptions.in_flight);
    cuda::encode(wire_, values.data(), coded, values.size(), stream_->get());
    cuda::decode(wire_, coded, values.data(), values.size(), stream_->get());
  }

 private:
  static constexpr std::size_t kSlot = kOptions.segment_bytes / sizeof(float) * sizeof(std::uint16_t);

  // Each exchange in flight has two slots, for the sent and the received segment. The last slot belongs to round().
  std::span<std::byte> slot(std::size_t number) const { return {coded_.view().address + number * kSlot, kSlot}; }
  std::uint16_t* numbers(std::size_t number) const { return reinterpret_cast<std::uint16_t*>(slot(number).data()); }

  WireType wire_;
  std::shared_ptr<const RingStream> stream_;
  Buffer coded_;
  std::vector<std::span<std::byte>> landings_;
  std::size_t posted_ = 0, collected_ = 0;
  std::unique_ptr<RingLink> link_;  // last, because it may still be sending from the memory above
};

Ring make_ring(const World& world, WireType wire, const std::shared_ptr<AllReduceContext>& context) {
  const auto stream = std::make_shared<const RingStream>(context);
  std::unique_ptr<RingLink> link = std::make_unique<MpiLink>(world, kOptions.in_flight, context);
  if (wire != WireType::fp32) link = std::make_unique<GpuCompressedLink>(std::move(link), wire, stream);
  return {std::move(link), static_cast<std::size_t>(world.rank()), static_cast<std::size_t>(world.size()), context,
          kOptions,        std::make_unique<GpuRingMemory>(stream)};
}

// Runs the ring after the lane's work at the time of begin(). run() returns when the result is complete, so the lane
// need not wait.
class GpuMessageRing final : public AllReduceAlgorithm, public LaneOrder {
 public:
  GpuMessageRing(const World& world, Device& device, WireType wire, const std::shared_ptr<AllReduceContext>& context)
      : AllReduceAlgorithm({.order = "ring of " + to_string(wire), .wire = wire}, context),
        number_(cuda::current_device()),
        device_(device),
        ring_(make_ring(world, wire, context)) {}

  std::span<std::byte> allocate(std::size_t bytes, Memory memory) override { return ring_.allocate(bytes, memory); }

  void begin(DeviceView, const Collective&) override {
    cuda::Event ready = cuda::make_event();
    cuda::check(cudaEventRecord(ready.get(), cuda::compute_lane(device_)));
    const std::scoped_lock lock(mutex_);
    ready_.push_back(std::move(ready));
  }
  void run(std::span<float> values, const Collective& collective) override {
    cuda::check(cudaSetDevice(number_));  // the current device is per thread
    const cuda::Event ready = next_ready();
    for (int polls = 0; !cuda::done(ready.get()); ++polls) context()->backoff.pause(polls);
    ring_.run(values, collective);
  }

  std::uint64_t bytes_sent() const override { return ring_.bytes_sent(); }

 private:
  cuda::Event next_ready() {
    const std::scoped_lock lock(mutex_);
    cuda::Event ready = std::move(ready_.front());
    ready_.pop_front();
    return ready;
  }

  const int number_;  // the GPU's
  Device& device_;
  Ring ring_;
  std::mutex mutex_;  // guards what follows
  std::deque<cuda::Event> ready_;
};

}  // namespace

bool mpi_takes_gpu_memory() {
  return MPIX_Query_cuda_support != nullptr && MPIX_Query_cuda_support() == 1;
}

std::unique_ptr<AllReduce> make_gpu_message_ring(const World& world, Device& device, WireType wire, std::string why) {
  const auto context = std::make_shared<AllReduceContext>(polls_on_this_node(world.local_size()));
  auto ring = std::make_unique<GpuMessageRing>(world, device, wire, context);
  LaneOrder* const order = ring.get();
  return std::make_unique<AllReduceWorker>(
      std::move(ring),
      fmt::format("ring over MPI messages of {} between GPUs, segments of {} bytes, {} in flight", to_string(wire),
                  kOptions.segment_bytes, kOptions.in_flight),
      std::move(why), 0, order);
}

}  // namespace annulus
