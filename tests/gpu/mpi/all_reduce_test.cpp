#include "collectives/all_reduce.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <numeric>
#include <ostream>
#include <string_view>
#include <thread>

#include "collectives/gpu/all_reduce_stream.h"
#include "collectives/gpu/direct_all_reduce.h"
#include "collectives/gpu/gpu_sharing.h"
#include "collectives/gpu/ipc_ring.h"
#include "collectives/gpu/message_ring.h"
#include "collectives/gpu/nccl.h"
#include "collectives/gpu/peer_all_reduce.h"
#include "collectives/gpu/staged.h"
#include "collectives/gpu/stream_flags.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/on_error.h"
#include "kernels/base/random.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/runtime/side_lane.h"
#include "tests/mpi/shares.h"

using namespace annulus;
using namespace annulus::test;

// The tests of tests/mpi/all_reduce_test.cpp for arrays in GPU memory. There arrays are filled, all-reduced, read and
// overwritten by work on the lane, without a wait in between.

namespace {

// Each rank of a node uses the next GPU, round robin.
void use_gpu(const World& world) {
  int gpus = 0;
  cuda::check(cudaGetDeviceCount(&gpus));
  cuda::check(cudaSetDevice(world.local_rank() % gpus));
}

DeviceRequest current_gpu() {
  DeviceRequest request;
  cuda::check(cudaGetDevice(&request.gpu));
  return request;
}

using Make = std::function<std::unique_ptr<AllReduce>(const World&, cuda::CudaDevice&)>;

struct Case {
  std::string name;
  Make make;
  int ranks_per_node = 0;  // 0: as it is
};

std::ostream& operator<<(std::ostream& stream, const Case& c) {
  return stream << c.name << ", " << c.ranks_per_node << " ranks per node";
}

Case by_name(const std::string& name, int ranks_per_node = 0) {
  return {name, [name](const World& world, cuda::CudaDevice& device) { return make_all_reduce(name, world, device); },
          ranks_per_node};
}

template <class Algorithm>
std::unique_ptr<AllReduce> on_stream(std::unique_ptr<cuda::SideLane> lane, std::unique_ptr<Algorithm> algorithm) {
  return std::make_unique<AllReduceStream>(AllReduceInfo{.description = "test", .order = "test", .all_verbs = true},
                                           std::move(lane), std::move(algorithm));
}

Case ring(const IpcRingOptions& options) {
  return {fmt::format("ring, segments of {} bytes", options.segment_bytes),
          [options](const World& world, cuda::CudaDevice& device) -> std::unique_ptr<AllReduce> {
            if (world.size() == 1) return make_all_reduce("ring", world, device);
            auto lane = std::make_unique<cuda::SideLane>(device);
            auto algorithm = make_ipc_ring(world, *lane, options);
            return on_stream(std::move(lane), std::move(algorithm));
          }};
}

Case direct(const DirectOptions& options) {
  return {fmt::format("direct, small up to {} bytes", options.small_bytes),
          [options](const World& world, cuda::CudaDevice& device) -> std::unique_ptr<AllReduce> {
            if (world.size() == 1) return make_all_reduce("direct", world, device);
            auto lane = std::make_unique<cuda::SideLane>(device);
            auto algorithm = make_direct_all_reduce(world, *lane, options);
            return on_stream(std::move(lane), std::move(algorithm));
          }};
}

Case staged(const std::string& host, const StagedOptions& options) {
  return {fmt::format("{}, pieces of {} bytes", host, options.piece_bytes),
          [=](const World& world, cuda::CudaDevice& device) -> std::unique_ptr<AllReduce> {
            if (world.size() == 1) return make_all_reduce(host, world, device);
            return make_staged(device, make_host_all_reduce(host, world, WireType::fp32, {}), options);
          }};
}

// NCCL itself, which is otherwise not used in a world of one.
Case nccl() {
  return {"nccl", [](const World& world, cuda::CudaDevice& device) -> std::unique_ptr<AllReduce> {
            auto lane = std::make_unique<cuda::SideLane>(device);
            auto algorithm = make_nccl(world, *lane);
            return on_stream(std::move(lane), std::move(algorithm));
          }};
}

Case gpu_message_ring() {
  return {"ring over messages between GPUs",
          [](const World& world, cuda::CudaDevice& device) -> std::unique_ptr<AllReduce> {
            if (world.size() == 1) return make_all_reduce("ring", world, device);
            return make_gpu_message_ring(world, device, WireType::fp32, "test");
          }};
}

// The cases that this world supports.
std::vector<Case> cases() {
  const World world;
  use_gpu(world);
  std::vector<Case> all{by_name("ring"),
                        ring({.segment_bytes = 4096, .scratch_bytes = 64 << 10}),
                        direct({}),
                        direct({.small_bytes = 1000, .scratch_bytes = 64 << 10}),
                        by_name("auto"),
                        by_name("auto", 1),
                        by_name("message-ring"),
                        by_name("shm"),
                        by_name("doubling"),
                        by_name("mpi"),
                        staged("shm", {.piece_bytes = 64 << 10})};
  if (mpi_takes_gpu_memory()) all.push_back(gpu_message_ring());
  if (world.size() == 1 || shared_gpu(world).empty()) all.push_back(nccl());
  if (world.size() > 2 && world.size() % 2 == 0) all.push_back(by_name("hierarchical", 2));
  return all;
}

constexpr std::size_t kLarge = (3 << 20) / sizeof(float);

// All-reduces over several nodes that send 16 bits.
struct Messages {
  std::string name;
  int ranks_per_node;
  std::string description;  // how it begins
  double roundings;         // of a value, on its way
};

std::vector<Messages> messages() {
  const World world;
  const double hops = world.size();
  std::vector<Messages> all;
  if (mpi_takes_gpu_memory()) all.push_back({"ring", 1, "ring over MPI messages of", hops});
  if (!shared_gpu(world).empty()) return all;
  for (const std::string name : {"nccl", "auto"}) all.push_back({name, 1, "all-reduce of", 2});
  if (world.size() == 4)
    for (const std::string name : {"hierarchical", "auto"})
      all.push_back({name, 2, "hierarchical: over the 2 GPUs' memory on each node", 2});
  return all;
}

std::vector<std::size_t> sizes_for(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::size_t> sizes = {0, 1, n - 1, n, n + 1, 64 * n - 1, 64 * n, 64 * n + 1, 997, 65'536, 65'537};
  for (std::uint64_t draw = 0; draw < 8; ++draw) sizes.push_back(mix(1, draw) % (draw % 2 == 0 ? 1'000 : 60'001));
  for (std::size_t i = sizes.size(); i > 1; --i) std::swap(sizes[i - 1], sizes[mix(2, i) % i]);
  return sizes;
}

// Arrays in GPU memory, each with pinned memory that the lane copies from and to.
class Arrays {
 public:
  Arrays(cuda::CudaDevice& device, AllReduce& all_reduce, bool own_memory, const std::vector<std::size_t>& sizes)
      : device_(device) {
    const std::size_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) * sizeof(float);
    pinned_ = cuda::allocate_pinned(bytes);
    if (!own_memory) elsewhere_ = cuda::allocate_device(bytes);
    const DeviceView all = own_memory ? all_reduce.allocate(bytes) : elsewhere_.view();
    std::size_t begin = 0;
    for (const std::size_t size : sizes) {
      device_arrays_.push_back(all.slice(begin, size * sizeof(float)));
      host_arrays_.push_back(floats(pinned_.view().slice(begin, size * sizeof(float))));
      begin += size * sizeof(float);
    }
  }

  DeviceView operator[](std::size_t number) const { return device_arrays_[number]; }

  void fill(std::size_t number, const std::vector<float>& values) {
    std::ranges::copy(values, host_arrays_[number].begin());
    copy(device_arrays_[number].address, host_arrays_[number].data(), number, cudaMemcpyHostToDevice);
  }

  // Reads it and overwrites it with NaN, which a late rank would add or copy.
  void take(std::size_t number) {
    const DeviceView array = device_arrays_[number];
    copy(host_arrays_[number].data(), array.address, number, cudaMemcpyDeviceToHost);
    cuda::check(cudaMemsetAsync(array.address, 0xff, array.bytes, device_.lane()));
  }

  std::span<const float> taken(std::size_t number) {
    device_.finish();
    return host_arrays_[number];
  }

 private:
  void copy(void* to, const void* from, std::size_t number, cudaMemcpyKind kind) {
    cuda::check(cudaMemcpyAsync(to, from, device_arrays_[number].bytes, kind, device_.lane()));
  }

  cuda::CudaDevice& device_;
  Buffer pinned_, elsewhere_;
  std::vector<DeviceView> device_arrays_;
  std::vector<std::span<float>> host_arrays_;
};

void sleep(void* microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::uintptr_t>(microseconds)));
}

// Keeps the lane busy for a time that differs between ranks.
void dawdle(cuda::CudaDevice& device, const World& world, std::uint64_t draw) {
  const std::uint64_t microseconds = mix(static_cast<std::uint64_t>(world.rank()) + 77, draw) % 400;
  cuda::check(cudaLaunchHostFunc(device.lane(), sleep, reinterpret_cast<void*>(microseconds)));
}

std::vector<float> sum_of(cuda::CudaDevice& device, AllReduce& all_reduce, const std::vector<float>& share) {
  const Buffer memory = cuda::allocate_device(share.size() * sizeof(float));
  device.upload(std::as_bytes(std::span(share)), memory.view());
  all_reduce.wait(all_reduce.enqueue(memory.view()));
  std::vector<float> sum(share.size());
  device.download(memory.view(), std::as_writable_bytes(std::span(sum)));
  return sum;
}

}  // namespace

TEST_CASE("all-reduces of any size, any number in flight, are exact and bit-identical on all ranks") {
  const Case algorithm = GENERATE(from_range(cases()));
  const World world(algorithm.ranks_per_node);
  const std::size_t together = GENERATE(1, 8);
  const bool own_memory = GENERATE(false, true);
  const std::vector<std::size_t> sizes = sizes_for(world.size());
  cuda::CudaDevice device(current_gpu());
  const auto all_reduce = algorithm.make(world, device);
  Arrays arrays(device, *all_reduce, own_memory, sizes);
  for (const bool exact : {true, false})
    for (std::size_t begin = 0; begin < sizes.size(); begin += together) {
      const std::size_t end = std::min(begin + together, sizes.size());
      std::vector<AllReduce::Ticket> tickets;
      for (std::size_t i = begin; i < end; ++i) {
        dawdle(device, world, i);
        arrays.fill(i, exact ? integers(sizes[i], world.rank()) : fractions(sizes[i], world.rank()));
        tickets.push_back(all_reduce->enqueue(arrays[i]));
      }
      for (std::size_t i = begin; i < end; ++i) {
        all_reduce->join(tickets[i - begin]);
        arrays.take(i);
      }
      for (std::size_t i = begin; i < end; ++i) {
        CAPTURE(algorithm, together, own_memory, sizes[i]);
        if (exact)
          check_equal(arrays.taken(i), exact_sum(sizes[i], world.size()));
        else
          check_same_on_every_rank(world, arrays.taken(i));
      }
    }
}

TEST_CASE("the same arrays are all-reduced in every step while the lane continues") {
  const Case algorithm = GENERATE(from_range(cases()));
  const World world(algorithm.ranks_per_node);
  cuda::CudaDevice device(current_gpu());
  const auto all_reduce = algorithm.make(world, device);
  const std::vector<std::size_t> sizes{20'000, 30'001, 5};  // buckets of a step
  constexpr std::size_t kSteps = 12;
  std::vector<std::size_t> all;
  for (std::size_t step = 0; step < kSteps; ++step) all.insert(all.end(), sizes.begin(), sizes.end());
  Arrays shares(device, *all_reduce, false, all), sums(device, *all_reduce, false, all);
  const std::size_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) * sizeof(float);
  const DeviceView gradients = all_reduce->allocate(bytes);
  const Buffer other = cuda::allocate_device(100'000);
  for (std::size_t i = 0; i < all.size(); ++i) shares.fill(i, integers(all[i], world.rank(), i));
  const auto copy = [&](DeviceView from, DeviceView to) {
    cuda::check(cudaMemcpyAsync(to.address, from.address, from.bytes, cudaMemcpyDeviceToDevice, device.lane()));
  };
  const auto bucket = [&](std::size_t number) {
    std::size_t begin = 0;
    for (std::size_t i = 0; i < number; ++i) begin += sizes[i] * sizeof(float);
    return gradients.slice(begin, sizes[number] * sizeof(float));
  };
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<AllReduce::Ticket> tickets;
    for (std::size_t b = 0; b < sizes.size(); ++b) {
      dawdle(device, world, step * sizes.size() + b);
      copy(shares[step * sizes.size() + b], bucket(b));
      tickets.push_back(all_reduce->enqueue(bucket(b), {.bucket = b}));
      device.zero(other.view());
    }
    for (std::size_t b = 0; b < sizes.size(); ++b) {
      all_reduce->join(tickets[b]);
      copy(bucket(b), sums[step * sizes.size() + b]);
      cuda::check(cudaMemsetAsync(bucket(b).address, 0xff, bucket(b).bytes, device.lane()));
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    sums.take(i);
    CAPTURE(algorithm, i);
    check_equal(sums.taken(i), exact_sum(all[i], world.size(), i));
  }
}

TEST_CASE("repeated all-reduces are bit-identical") {
  const Case algorithm = GENERATE(from_range(cases()));
  const World world(algorithm.ranks_per_node);
  cuda::CudaDevice device(current_gpu());
  const auto all_reduce = algorithm.make(world, device);
  for (const std::size_t size : {std::size_t{997}, kLarge}) {
    CAPTURE(algorithm, size);
    const std::vector<float> share = fractions(size, world.rank());
    const std::vector<float> first = sum_of(device, *all_reduce, share);
    check_equal(sum_of(device, *all_reduce, share), first);
    check_same_on_every_rank(world, first);
  }
}

TEST_CASE("a direct all-reduce has the bits of the ring") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  const auto one_of = [&](const Case& algorithm) { return algorithm.make(world, device); };
  const auto ring = one_of(by_name("ring"));
  for (const DirectOptions options : {DirectOptions{}, DirectOptions{.small_bytes = 0}}) {
    const auto directly = one_of(direct(options));
    for (const std::size_t size : {1, 63, 65, 1'000, 30'001}) {
      CAPTURE(size, options.small_bytes);
      const std::vector<float> share = fractions(size, world.rank());
      check_equal(sum_of(device, *directly, share), sum_of(device, *ring, share));
    }
  }
}

TEST_CASE("on GPUs a reduce-scatter and an all-gather together are an all-reduce") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  std::vector<Case> with_all_verbs{by_name("ring"), ring({.segment_bytes = 4096}), direct({}), by_name("shm"),
                                   staged("shm", {.piece_bytes = 64 << 10})};
  if (world.size() == 1 || shared_gpu(world).empty()) with_all_verbs.push_back(nccl());
  const std::vector<std::size_t> sizes = sizes_for(world.size());
  for (const Case& algorithm : with_all_verbs) {
    const auto all_reduce = algorithm.make(world, device);
    const auto share = [&](std::size_t size) {  // NCCL may add in another order
      return algorithm.name == "nccl" ? integers(size, world.rank()) : fractions(size, world.rank());
    };
    Arrays whole(device, *all_reduce, true, sizes), two_steps(device, *all_reduce, true, sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(algorithm, sizes[i]);
      const std::uint64_t before = all_reduce->progress().snapshot().bytes_sent;
      whole.fill(i, share(sizes[i]));
      all_reduce->wait(all_reduce->enqueue(whole[i]));
      const std::uint64_t sent = all_reduce->progress().snapshot().bytes_sent - before;
      two_steps.fill(i, share(sizes[i]));
      all_reduce->join(all_reduce->enqueue(two_steps[i], {.verb = Verb::reduce_scatter}));
      const Range chunk = all_reduce->chunk(sizes[i]);
      // Only the rank's own chunk may come from it, and others may still read the rest.
      device.finish();
      world.barrier();
      const DeviceView rest = two_steps[i];
      const std::size_t begin = chunk.begin * sizeof(float), end = chunk.end * sizeof(float);
      cuda::check(cudaMemsetAsync(rest.address, 0xff, begin, device.lane()));
      cuda::check(cudaMemsetAsync(rest.address + end, 0xff, rest.bytes - end, device.lane()));
      all_reduce->wait(all_reduce->enqueue(two_steps[i], {.verb = Verb::all_gather}));
      if (sent > 0 && sizes[i] > 20'000)  // a small one is pulled whole
        CHECK(all_reduce->progress().snapshot().bytes_sent - before == 2 * sent);
      whole.take(i);
      two_steps.take(i);
      const std::vector<float> expected(whole.taken(i).begin(), whole.taken(i).end());
      check_equal(two_steps.taken(i), expected);
      const auto chunks = world.gather(std::uint64_t{chunk.size()});
      CHECK(std::accumulate(chunks.begin(), chunks.end(), std::uint64_t{0}) == sizes[i]);
    }
  }
}

TEST_CASE("waiting for the last array waits for all") {
  const Case algorithm = GENERATE(from_range(cases()));
  const World world(algorithm.ranks_per_node);
  cuda::CudaDevice device(current_gpu());
  const auto all_reduce = algorithm.make(world, device);
  Arrays arrays(device, *all_reduce, true, {100'000, 10});
  arrays.fill(0, integers(100'000, world.rank()));
  arrays.fill(1, integers(10, world.rank()));
  all_reduce->enqueue(arrays[0]);
  all_reduce->wait(all_reduce->enqueue(arrays[1]));
  for (const std::size_t i : {0, 1}) {
    std::vector<float> sum(arrays[i].bytes / sizeof(float));
    device.download(arrays[i], std::as_writable_bytes(std::span(sum)));
    check_equal(sum, exact_sum(sum.size(), world.size()));
  }
}

// The sum of fractions() over the ranks, without rounding.
std::vector<double> exact_fractions(std::size_t count, int ranks) {
  std::vector<double> exact(count);
  for (int rank = 0; rank < ranks; ++rank)
    std::ranges::transform(exact, fractions(count, rank), exact.begin(), std::plus<>());
  return exact;
}

TEST_CASE("16-bit messages of GPUs on several nodes are added in float32, to the same bits on all ranks") {
  use_gpu(World());
  if (World().size() == 1 || messages().empty()) return;
  const WireType wire = GENERATE(WireType::bf16, WireType::fp16);
  const Messages algorithm = GENERATE(from_range(messages()));
  const World world(algorithm.ranks_per_node);
  cuda::CudaDevice device(current_gpu());
  const auto all_reduce = make_all_reduce(algorithm.name, world, device, wire);
  CAPTURE(algorithm.name, algorithm.ranks_per_node, to_string(wire), all_reduce->info().description);
  CHECK(all_reduce->info().wire == wire);
  CHECK_THAT(all_reduce->info().description,
             Catch::StartsWith(algorithm.description) && Catch::Contains(to_string(wire)));
  CHECK(unused_wire(*all_reduce, wire).empty());
  const std::vector<std::size_t> sizes{0, 1, 5, 63, 64, 65, 997, 20'001, kLarge, (5 << 20) / sizeof(float) + 3};
  for (const bool own_memory : {true, false}) {
    Arrays arrays(device, *all_reduce, own_memory, sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(own_memory, sizes[i]);
      dawdle(device, world, i);
      arrays.fill(i, fractions(sizes[i], world.rank()));
      const std::uint64_t before = all_reduce->progress().snapshot().bytes_sent;
      all_reduce->wait(all_reduce->enqueue(arrays[i]));
      const std::uint64_t sent = all_reduce->progress().snapshot().bytes_sent - before;
      arrays.take(i);
      const std::span<const float> found = arrays.taken(i);
      check_same_on_every_rank(world, found);
      const std::vector<double> exact = exact_fractions(sizes[i], world.size());
      double worst = 0;
      for (std::size_t k = 0; k < exact.size(); ++k) worst = std::max(worst, std::abs(found[k] - exact[k]) / exact[k]);
      CHECK(worst <= algorithm.roundings * (wire == WireType::bf16 ? 0x1p-8 : 0x1p-11) * (1 + 0x1p-7));
      if (sizes[i] > 64) CHECK(worst > 0);
      // Of its node's array the share of a rank, to the other nodes and back.
      if (sizes[i] != kLarge) continue;
      const auto nodes = static_cast<std::size_t>(world.size() / world.local_size());
      CHECK(sent == 2 * (nodes - 1) * (kLarge / static_cast<std::size_t>(world.size())) * sizeof(std::uint16_t));
    }
  }
}

TEST_CASE("two concurrent all-reduces do not mix up their flags and messages") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  const auto one = make_all_reduce("ring", world, device);
  const auto other = make_all_reduce(GENERATE("ring", "mpi"), world, device);
  Arrays first(device, *one, true, {50'000}), second(device, *other, true, {40'000});
  for (std::size_t step = 0; step < 5; ++step) {
    first.fill(0, integers(50'000, world.rank(), step));
    const AllReduce::Ticket first_ticket = one->enqueue(first[0]);
    second.fill(0, integers(40'000, world.rank(), 2 * step));
    const AllReduce::Ticket second_ticket = other->enqueue(second[0]);
    world.barrier();
    other->join(second_ticket);
    second.take(0);
    one->join(first_ticket);
    first.take(0);
    check_equal(first.taken(0), exact_sum(50'000, world.size(), step));
    check_equal(second.taken(0), exact_sum(40'000, world.size(), 2 * step));
  }
}

TEST_CASE("2(N-1)/N of an array that N divides in cache lines are pulled, and whole ones if they are small") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  const auto n = static_cast<std::size_t>(world.size());
  const Buffer memory = cuda::allocate_device(64 * n * sizeof(float));
  const auto pulled = [&](const Case& algorithm) {
    const auto all_reduce = algorithm.make(world, device);
    all_reduce->wait(all_reduce->enqueue(memory.view()));
    return all_reduce->progress().snapshot().bytes_sent;
  };
  CHECK(pulled(by_name("ring")) == 2 * (n - 1) * 64 * sizeof(float));
  CHECK(pulled(direct({.small_bytes = 0})) == 2 * (n - 1) * 64 * sizeof(float));
  CHECK(pulled(direct({})) == (n - 1) * 64 * n * sizeof(float));
}

TEST_CASE("spans of all-reduces are on the host's clock, and exist only if recorded") {
  const World world;
  use_gpu(world);
  if (world.size() == 1) return;
  cuda::CudaDevice device(current_gpu());
  const auto all_reduce = make_all_reduce(GENERATE("ring", "shm"), world, device);
  TraceLane lane(100);
  all_reduce->record_to(&lane);
  const Buffer memory = cuda::allocate_device(100'000);
  all_reduce->wait(all_reduce->enqueue(memory.view()));
  CHECK(lane.spans().empty());
  lane.record(true, 5);
  const double begun = now_seconds();
  all_reduce->wait(all_reduce->enqueue(memory.view(), {.bucket = 2}));
  const double ended = now_seconds();
  const auto sum = std::ranges::find(lane.spans(), "all-reduce of bucket", &TraceLane::Span::name);
  REQUIRE(sum != lane.spans().end());
  CHECK(sum->number == 3);
  CHECK(sum->step == 5);
  constexpr double kClocks = 0.05;  // maximum difference if processes share cores
  CHECK(sum->begin >= begun - kClocks);
  CHECK(sum->end >= sum->begin);
  CHECK(sum->end <= ended + kClocks);
}

TEST_CASE("a waiting all-reduce between GPUs reports its peer and its step") {
  const World world;
  use_gpu(world);
  if (world.size() == 1) return;
  cuda::CudaDevice device(current_gpu());
  const auto all_reduce = make_all_reduce(GENERATE("ring", "direct"), world, device);
  const Buffer memory = cuda::allocate_device(100'000);
  world.barrier();
  if (world.root()) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  AllReduceProgress::Snapshot seen;
  {
    std::jthread onlooker([&](std::stop_token stop) {
      while (!stop.stop_requested() && seen.peer != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        seen = all_reduce->progress().snapshot();
      }
    });
    all_reduce->wait(all_reduce->enqueue(memory.view(), {.bucket = 4}));
  }
  if (world.rank() == 1) {
    CHECK(seen.peer == 0);
    CHECK(seen.bucket == 4);
    CHECK(seen.step.number == 1);
  }
  const AllReduceProgress::Snapshot after = all_reduce->progress().snapshot();
  CHECK(after.begun == 1);
  CHECK(after.ended == 1);
}

TEST_CASE("all-reduces that nobody waits for do not keep a rank from leaving") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  const Buffer memory = cuda::allocate_device(4'000'000);
  const auto all_reduce = make_all_reduce(GENERATE("ring", "direct", "message-ring", "shm"), world, device);
  if (world.root()) all_reduce->enqueue(memory.view());
}

TEST_CASE("waiting for an all-reduce that another rank has left gives an error that names the rank") {
  const World world;
  use_gpu(world);
  if (world.size() < 3) return;
  cuda::CudaDevice device(current_gpu());
  const Buffer memory = cuda::allocate_device(100'000);
  const auto all_reduce = make_all_reduce(GENERATE("ring", "direct"), world, device);
  const int last = world.size() - 1;  // never comes, so that the root cannot end it
  if (world.root()) all_reduce->enqueue(memory.view());
  if (!world.root() && world.rank() != last)
    CHECK_THROWS_WITH(all_reduce->wait(all_reduce->enqueue(memory.view())),
                      Catch::Contains("rank 0 has left an all-reduce"));
}

TEST_CASE("a rank that leaves with an exception does not hang if the others never come") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  const std::string algorithm = GENERATE("ring", "direct", "message-ring", "shm");
  const auto begun = std::chrono::steady_clock::now();
  try {
    const auto all_reduce = make_all_reduce(algorithm, world, device);
    const Buffer memory = cuda::allocate_device(100'000);  // which is freed first, and that waits for all streams
    const OnError abandon_all_reduces([&] { all_reduce->abandon(); });
    world.barrier();
    if (world.root()) {
      const AllReduce::Ticket ticket = all_reduce->enqueue(memory.view());
      const bool host_waits = algorithm == "message-ring" || algorithm == "shm";
      if (!host_waits) all_reduce->join(ticket);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // so that the root has long been waiting
    }
    throw Error("something else");
  } catch (const Error&) {
  }
  device.finish();
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
}

TEST_CASE("GPUs of several nodes with a GPU for each rank are all-reduced hierarchically, and none hangs") {
  const World world(2);
  use_gpu(World());
  if (world.size() != 4 || !shared_gpu(world).empty()) return;
  cuda::CudaDevice device(current_gpu());
  const auto begun = std::chrono::steady_clock::now();
  const auto all_reduce = make_all_reduce("hierarchical", world, device);
  try {
    CHECK_THAT(all_reduce->info().description, Catch::StartsWith("hierarchical: over the 2 GPUs' memory on each node"));
    CHECK_FALSE(all_reduce->info().all_verbs);
    CHECK(all_reduce->info().order == make_all_reduce("hierarchical", world, device)->info().order);
    const DeviceView memory = all_reduce->allocate(100'000);
    const OnError abandon_all_reduces([&] { all_reduce->abandon(); });
    world.barrier();
    // Both ranks of the first node wait for the other node, or one of them on its node.
    const int come = GENERATE(1, 2);
    if (world.rank() < come) all_reduce->join(all_reduce->enqueue(memory));
    throw Error("something else");
  } catch (const Error&) {
  }
  device.finish();
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
}

TEST_CASE("if a GPU is stuck after an error, the process reports it and ends", "[.stuck]") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  const auto all_reduce = make_all_reduce("ring", world, device);
  const Buffer memory = cuda::allocate_device(100'000);
  const OnError abandon_all_reduces([&] { all_reduce->abandon(); });
  constexpr std::uintptr_t kForEver = 3'600'000'000;
  cuda::check(cudaLaunchHostFunc(device.lane(), sleep, reinterpret_cast<void*>(kForEver)));
  all_reduce->enqueue(memory.view());
  throw Error("something else");
}

TEST_CASE("a killed rank ends the job", "[.killed]") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  const Buffer memory = cuda::allocate_device(100'000);
  const auto all_reduce = make_all_reduce("ring", world, device);
  for (int step = 0;; ++step) {
    if (step == 20 && world.rank() == world.size() - 1) kill(getpid(), SIGKILL);
    all_reduce->wait(all_reduce->enqueue(memory.view()));
  }
}

TEST_CASE("NCCL is refused with a reason if ranks share a GPU") {
  const World world;
  if (world.size() == 1) return;
  cuda::check(cudaSetDevice(0));
  cuda::CudaDevice device(current_gpu());
  CHECK_THROWS_WITH(make_all_reduce("nccl", world, device),
                    Catch::Contains("ranks 0 and 1 share GPU") && Catch::Contains("--all-reduce auto"));
}

TEST_CASE("the description names the algorithm and the reason") {
  const World world;
  use_gpu(world);
  if (world.size() == 1) return;
  cuda::CudaDevice device(current_gpu());
  const std::string best = make_all_reduce("auto", world, device)->info().description;
  if (shared_gpu(world).empty())
    CHECK_THAT(best, Catch::Contains("over the GPUs' memory") && Catch::Contains("can access its neighbour"));
  else
    CHECK_THAT(best, Catch::Contains("ranks that share a GPU wait on the host"));
  CHECK(make_all_reduce("direct", world, device)->info().order == make_all_reduce("ring", world, device)->info().order);
  CHECK_THAT(make_all_reduce("shm", world, device)->info().description,
             Catch::Contains("staged through pinned memory"));
  const World nodes(1);
  const auto between = [&](const std::string& name, WireType wire) {
    return make_all_reduce(name, nodes, device, wire)->info().description;
  };
  const std::string chosen = between("auto", WireType::fp32);
  CHECK_THAT(chosen, Catch::Contains("several nodes"));
  CHECK(chosen.starts_with("NCCL's all-reduce") == shared_gpu(world).empty());
  for (const std::string& other : {between("auto", WireType::bf16), between("ring", WireType::fp32)})
    CHECK_THAT(other, Catch::Contains("several nodes") && !Catch::StartsWith("NCCL"));
}

namespace {

// Fails on the last rank, for which the others wait.
class FailingOnOneRank final : public PeerAllReduce {
 public:
  FailingOnOneRank(const World& world, cuda::SideLane& lane)
      : PeerAllReduce(world, lane.stream(), {}, 1024), flag_(share(sizeof(std::uint32_t))) {}
  ~FailingOnOneRank() override { leave(); }

  Range chunk(std::size_t count) const override { return {0, count}; }
  std::uint64_t bytes_to_send(DeviceView, Verb) const override { return 0; }

 private:
  std::uint32_t* flag() const { return reinterpret_cast<std::uint32_t*>(flag_.own.address); }
  void put_array(const Array&, Verb) override {
    if (rank() + 1 == size()) fail("broken");
    flags_.wait(stream(), flag(), 1);
  }
  void raise_own_flags() override { flags_.write(aside(), flag(), 1); }

  const cuda::StreamFlags flags_;
  const Arena flag_;
};

}  // namespace

TEST_CASE("an all-reduce that fails on one rank while it is measured fails on all") {
  const World world;
  use_gpu(world);
  if (world.size() == 1) return;
  cuda::CudaDevice device(current_gpu());
  cuda::SideLane lane(device);
  CHECK_THROWS_WITH(
      [&] {
        FailingOnOneRank all_reduce(world, lane);
        all_reduce.measure(0.2);
      }(),
      Catch::Contains("GPUs of one node do not wake each other"));
}

// With ANNULUS_EMULATED_APART.
TEST_CASE("without peer access ring and direct are refused, and auto chooses another algorithm", "[.apart]") {
  const World world;
  use_gpu(world);
  cuda::CudaDevice device(current_gpu());
  for (const std::string name : {"ring", "direct"})
    CHECK_THROWS_WITH(make_all_reduce(name, world, device), Catch::Contains("cannot access its neighbour's memory"));
  const auto all_reduce = make_all_reduce("auto", world, device);
  const std::string& description = all_reduce->info().description;
  if (shared_gpu(world).empty())
    CHECK_THAT(description, Catch::Contains("cannot access") && Catch::Contains("NCCL's all-reduce"));
  else
    CHECK_THAT(description, Catch::Contains("staged through pinned memory") && Catch::Contains("share a GPU"));
  check_equal(sum_of(device, *all_reduce, integers(997, world.rank())), exact_sum(997, world.size()));
}

// With ANNULUS_EMULATED_NO_NCCL.
TEST_CASE("if NCCL fails on one rank it is refused on all, and auto takes another algorithm", "[.no_nccl]") {
  const World nodes(2);
  use_gpu(World());
  cuda::CudaDevice device(current_gpu());
  for (const std::string name : {"nccl", "hierarchical"})
    CHECK_THROWS_WITH(make_all_reduce(name, nodes, device), Catch::Contains("NCCL failed"));
  const WireType wire = GENERATE(WireType::fp32, WireType::bf16);
  const auto all_reduce = make_all_reduce("auto", nodes, device, wire);
  CHECK_THAT(all_reduce->info().description,
             Catch::Contains("NCCL failed") && Catch::Contains("staged through pinned memory"));
  CHECK(all_reduce->info().wire == wire);
  if (wire == WireType::fp32)
    check_equal(sum_of(device, *all_reduce, integers(997, nodes.rank())), exact_sum(997, nodes.size()));
}

// With ANNULUS_EMULATED_WRONG_NCCL.
TEST_CASE("if NCCL's sums are wrong it is refused on all ranks, and auto takes another algorithm", "[.wrong_nccl]") {
  const World nodes(2);
  use_gpu(World());
  cuda::CudaDevice device(current_gpu());
  CHECK_THROWS_WITH(make_all_reduce("nccl", nodes, device),
                    Catch::Contains("NCCL's all-reduce of 65536 numbers is wrong: number 32768 is ") &&
                        Catch::Contains("update NCCL"));
  const auto all_reduce = make_all_reduce("auto", nodes, device);
  CHECK_THAT(all_reduce->info().description,
             Catch::Contains("is wrong") && Catch::Contains("staged through pinned memory"));
  check_equal(sum_of(device, *all_reduce, integers(997, nodes.rank())), exact_sum(997, nodes.size()));
}
