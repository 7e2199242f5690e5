#include "collectives/gpu/message_ring.h"

#include <deque>
#include <mutex>

#include "collectives/all_reduce_worker.h"
#include "collectives/gpu/ring_sum.h"
#include "collectives/ring/mpi_link.h"
#include "collectives/ring/ring.h"
#include "kernels/base/error.h"
#include "kernels/cuda/runtime/compute_lane.h"
#include "kernels/cuda/runtime/side_lane.h"

// Open MPI, MPICH, MVAPICH and their descendants have this function; their headers differ, and may be those of another
// version. Null if the library does not have it.
extern "C" [[gnu::weak]] int MPIX_Query_cuda_support();

namespace annulus {
namespace {

// Not measured yet. A message of this size takes 80 us on a link of 100 Gbit/s, adding one takes a few.
constexpr RingOptions kOptions{.segment_bytes = 1 << 20, .in_flight = 4};

class GpuRingMemory final : public RingMemory {
 public:
  explicit GpuRingMemory(std::shared_ptr<AllReduceContext> context)
      : context_(std::move(context)),
        stream_(cuda::make_stream(true)),
        done_(cuda::make_event()),
        scratch_(cuda::allocate_device(kOptions.in_flight * kOptions.segment_bytes)) {}

  std::span<std::byte> allocate(std::size_t bytes) override {
    const DeviceView memory = memory_.emplace_back(cuda::allocate_device(bytes)).view();
    return {memory.address, memory.bytes};
  }
  std::span<float> scratch(std::size_t count) override {
    return {reinterpret_cast<float*>(scratch_.view().address), count};
  }
  void add(std::span<float> to, std::span<const std::byte> bytes) override {
    cuda::add_from_peer(reinterpret_cast<const float*>(bytes.data()), to.data(), to.size(), stream_.get());
    finish();
  }
  void copy(std::span<float> to, std::span<const std::byte> bytes) override {
    cuda::check(cudaMemcpyAsync(to.data(), bytes.data(), bytes.size(), cudaMemcpyDeviceToDevice, stream_.get()));
    finish();
  }

 private:
  void finish() {
    cuda::check(cudaEventRecord(done_.get(), stream_.get()));
    for (int polls = 0; !cuda::done(done_.get()); ++polls) context_->backoff.pause(polls);
  }

  std::shared_ptr<AllReduceContext> context_;
  cuda::Stream stream_;
  cuda::Event done_;
  Buffer scratch_;  // for all segments in flight. The worker's thread must not allocate: that waits for the device,
                    // which CUDA forbids while another thread captures its lane
  std::deque<Buffer> memory_;
};

// Runs the ring after the lane's work at the time of begin(). all_reduce() returns when the result is complete, so the
// lane need not wait.
class GpuMessageRing final : public AllReduceAlgorithm {
 public:
  GpuMessageRing(const World& world, Device& device, const std::shared_ptr<AllReduceContext>& context)
      : AllReduceAlgorithm({"ring of fp32"}),
        number_(cuda::current_device()),
        device_(device),
        context_(context),
        ring_(std::make_unique<MpiLink>(world, kOptions.in_flight, context), static_cast<std::size_t>(world.rank()),
              static_cast<std::size_t>(world.size()), context, kOptions, std::make_unique<GpuRingMemory>(context)) {}

  std::span<std::byte> allocate(std::size_t bytes) override { return ring_.allocate(bytes); }

  void begin(DeviceView) override {
    cuda::Event ready = cuda::make_event();
    cuda::check(cudaEventRecord(ready.get(), cuda::compute_lane(device_)));
    const std::scoped_lock lock(mutex_);
    ready_.push_back(std::move(ready));
  }
  void all_reduce(std::span<float> values) override {
    cuda::check(cudaSetDevice(number_));  // the current device is per thread
    const cuda::Event ready = next_ready();
    for (int polls = 0; !cuda::done(ready.get()); ++polls) context_->backoff.pause(polls);
    ring_.all_reduce(values);
  }

  std::uint64_t bytes_sent() const override { return ring_.bytes_sent(); }
  void record_to(TraceLane* lane) override { ring_.record_to(lane); }

 private:
  cuda::Event next_ready() {
    const std::scoped_lock lock(mutex_);
    cuda::Event ready = std::move(ready_.front());
    ready_.pop_front();
    return ready;
  }

  const int number_;  // of the GPU
  Device& device_;
  std::shared_ptr<AllReduceContext> context_;
  Ring ring_;
  std::mutex mutex_;  // guards what follows
  std::deque<cuda::Event> ready_;
};

}  // namespace

bool mpi_takes_gpu_memory() {
  return MPIX_Query_cuda_support != nullptr && MPIX_Query_cuda_support() == 1;
}

std::unique_ptr<AllReduce> make_gpu_message_ring(const World& world, Device& device, std::string why) {
  const auto context = std::make_shared<AllReduceContext>(polls_on_this_node(world.local_size()));
  auto ring = std::make_unique<GpuMessageRing>(world, device, context);
  return std::make_unique<AllReduceWorker>(
      std::move(ring), context,
      fmt::format("ring over MPI messages between GPUs, segments of {} bytes, {} in flight", kOptions.segment_bytes,
                  kOptions.in_flight),
      std::move(why), 0);
}

}  // namespace annulus
