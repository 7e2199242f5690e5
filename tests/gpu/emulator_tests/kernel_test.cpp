#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "tests/gpu/emulator_tests/emulation_test.h"

namespace {

constexpr unsigned kAll = 0xffffffffu;

// Sets ANNULUS_EMULATED_ORDER for a test, and restores it.
class OrderOfThreads {
 public:
  explicit OrderOfThreads(const char* order) {
    if (const char* const old = std::getenv(kName)) old_ = old;
    setenv(kName, order, 1);
  }
  ~OrderOfThreads() {
    if (old_)
      setenv(kName, old_->c_str(), 1);
    else
      unsetenv(kName);
  }

 private:
  static constexpr const char* kName = "ANNULUS_EMULATED_ORDER";
  std::optional<std::string> old_;
};

std::vector<int> numbers(std::size_t count, int first = 0) {
  std::vector<int> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

__device__ unsigned block_number() {
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}
__device__ unsigned thread_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

__global__ void count_visits(int* visits) {
  atomicAdd(visits + block_number() * (blockDim.x * blockDim.y * blockDim.z) + thread_number(), 1);
}

__global__ void __launch_bounds__(256) reverse_each_block(const int* __restrict__ from, int* __restrict__ to) {
  __shared__ int block[256];
  block[threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  to[blockIdx.x * blockDim.x + threadIdx.x] = block[blockDim.x - 1 - threadIdx.x];
}

__global__ void reverse_without_barrier(const int* from, int* to) {
  __shared__ int block[256];
  block[threadIdx.x] = from[threadIdx.x];
  to[threadIdx.x] = block[blockDim.x - 1 - threadIdx.x];
}

__global__ void shuffle_all_ways(int* results) {
  const int lane = static_cast<int>(threadIdx.x);
  int* const mine = results + 8 * threadIdx.x;
  mine[0] = __shfl_xor_sync(kAll, lane, 5);
  mine[1] = __shfl_down_sync(kAll, lane, 3u);
  mine[2] = __shfl_up_sync(kAll, lane, 3u);
  mine[3] = __shfl_sync(kAll, lane, 7);
  mine[4] = __shfl_down_sync(kAll, lane, 3u, 8);
  mine[5] = __shfl_sync(kAll, lane, 2, 8);
  mine[6] = static_cast<int>(__ballot_sync(kAll, lane % 3 == 0));
  mine[7] = __any_sync(kAll, lane == 31) * 2 + __all_sync(kAll, lane < 31);
}

// Lanes of one warp take different branches, with corresponding masks.
__global__ void shuffle_in_halves(int* results) {
  const int lane = static_cast<int>(threadIdx.x);
  int sum = lane;
  if (lane < 16) {
    for (int lanes = 8; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0x0000ffffu, sum, lanes);
  } else {
    sum = static_cast<int>(__ballot_sync(0xffff0000u, lane % 2));
  }
  results[lane] = sum;
}

__global__ void sum_of_partial_warp(float* result) {
  float sum = static_cast<float>(threadIdx.x + 1);
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float other = __shfl_down_sync(kAll, sum, static_cast<unsigned>(lanes));
    if (threadIdx.x + static_cast<unsigned>(lanes) < blockDim.x) sum += other;
  }
  if (threadIdx.x == 0) *result = sum;
}

__global__ void read_absent_lane(unsigned* result) {
  const unsigned got = __shfl_sync(kAll, threadIdx.x, 20);
  if (threadIdx.x == 0) *result = got;
}

__global__ void vote(int* results) {
  const int count = __syncthreads_count(threadIdx.x % 4 == 1);
  const int all = __syncthreads_and(threadIdx.x < 100), any = __syncthreads_or(threadIdx.x == 99);
  if (threadIdx.x == 0) {
    results[0] = count;
    results[1] = all;
    results[2] = any;
  }
}

__global__ void count_up(unsigned* count, float* sum) {
  atomicAdd(count, 1u);
  atomicAdd(sum, 0.5f);
}

__global__ void note_order(unsigned* next, unsigned* order) {
  order[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}

struct Parameters {
  int factor;
  int offset;
};
__global__ void scale(Parameters parameters, int* value) {
  *value = *value * parameters.factor + parameters.offset;
}

__global__ void leave_some_behind() {
  if (threadIdx.x == 0) return;
  __syncthreads();
}
__global__ void meet_at_different_barriers() {
  if (threadIdx.x == 0)
    __syncthreads();
  else
    __syncwarp();
}
__global__ void call_outside_of_mask() {
  __syncwarp(0x1);
}

// The order in which 2 blocks of 40 threads began.
std::vector<unsigned> noted_order() {
  OwnStream stream;
  const DeviceArray<unsigned> next(std::vector<unsigned>{0}), order(80);
  REQUIRE(start(note_order, 2, 40, stream, next.get(), order.get()) == cudaSuccess);
  return order.values(stream);
}

// 16 bytes at a time, like most of our kernels.
__global__ void copy_four(const float* from, float* to) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}

}  // namespace

TEST_CASE("a kernel runs once for every thread of every block") {
  OwnStream stream;
  const dim3 grid(3, 4, 2), block(5, 3, 7);
  constexpr std::size_t kThreads = 3 * 4 * 2 * 5 * 3 * 7;
  const DeviceArray<int> visits(std::vector<int>(kThreads, 0));
  REQUIRE(start(count_visits, grid, block, stream, visits.get()) == cudaSuccess);
  CHECK(visits.values(stream) == std::vector<int>(kThreads, 1));
}

TEST_CASE("a million threads without barriers") {
  OwnStream stream;
  constexpr std::size_t kBlocks = 4096, kThreads = 256;
  const DeviceArray<int> visits(std::vector<int>(kBlocks * kThreads, 0));
  REQUIRE(start(count_visits, kBlocks, kThreads, stream, visits.get()) == cudaSuccess);
  CHECK(visits.values(stream) == std::vector<int>(kBlocks * kThreads, 1));
}

TEST_CASE("threads share their block's memory and synchronize at barriers") {
  OwnStream stream;
  constexpr std::size_t kBlocks = 3, kThreads = 256;
  const DeviceArray<int> from(numbers(kBlocks * kThreads)), to(kBlocks * kThreads);
  REQUIRE(start(reverse_each_block, kBlocks, kThreads, stream, from.get(), to.get()) == cudaSuccess);
  std::vector<int> wanted = numbers(kBlocks * kThreads);
  for (auto block = wanted.begin(); block != wanted.end(); block += kThreads) std::reverse(block, block + kThreads);
  CHECK(to.values(stream) == wanted);
}

TEST_CASE("a missing barrier is detected in every order") {
  for (const char* order : {"forward", "reverse", "shuffle"}) {
    const OrderOfThreads asked(order);
    OwnStream stream;  // a new one, whose shared memory has not been written yet
    const DeviceArray<int> from(numbers(256, 1)), to(256);
    REQUIRE(start(reverse_without_barrier, 1, 256, stream, from.get(), to.get()) == cudaSuccess);
    std::vector<int> wanted = numbers(256, 1);
    std::ranges::reverse(wanted);
    const std::vector<int> got = to.values(stream);
    CHECK(got != wanted);
    CHECK(std::ranges::count(got, 0) == 128);  // of each pair, the one that came first
  }
}

TEST_CASE("the order of blocks and threads can be chosen") {
  std::vector<unsigned> wanted(80);
  std::iota(wanted.begin(), wanted.end(), 0u);
  {
    const OrderOfThreads asked("forward");
    CHECK(noted_order() == wanted);
  }
  {
    const OrderOfThreads asked("reverse");
    std::vector<unsigned> reversed(wanted.rbegin(), wanted.rend());
    CHECK(noted_order() == reversed);
  }
  const OrderOfThreads asked("shuffle");
  std::vector<unsigned> shuffled = noted_order();
  CHECK(shuffled != wanted);
  CHECK(noted_order() != shuffled);
  std::ranges::sort(shuffled);
  CHECK(shuffled == wanted);
}

TEST_CASE("a warp's threads exchange values") {
  OwnStream stream;
  const DeviceArray<int> results(32 * 8);
  REQUIRE(start(shuffle_all_ways, 1, 32, stream, results.get()) == cudaSuccess);
  const std::vector<int> got = results.values(stream);
  for (int lane = 0; lane < 32; ++lane) {
    INFO("lane " << lane);
    const std::vector<int> mine(got.begin() + 8 * lane, got.begin() + 8 * lane + 8);
    CHECK(mine == std::vector<int>{lane ^ 5, lane + 3 < 32 ? lane + 3 : lane, lane < 3 ? lane : lane - 3, 7,
                                   lane % 8 + 3 < 8 ? lane + 3 : lane, lane / 8 * 8 + 2, 0x49249249, 2});
  }
}

TEST_CASE("masks divide a warp, and missing threads are not waited for") {
  OwnStream stream;
  const DeviceArray<int> halves(32);
  REQUIRE(start(shuffle_in_halves, 1, 32, stream, halves.get()) == cudaSuccess);
  std::vector<int> wanted(32, 120);  // 0 + 1 + ... + 15
  std::fill(wanted.begin() + 16, wanted.end(), static_cast<int>(0xaaaa0000u));
  CHECK(halves.values(stream) == wanted);

  const DeviceArray<float> sum(1);
  REQUIRE(start(sum_of_partial_warp, 1, 20, stream, sum.get()) == cudaSuccess);
  CHECK(sum.values(stream) == std::vector{210.0f});
  const DeviceArray<unsigned> absent(1);
  REQUIRE(start(read_absent_lane, 1, 20, stream, absent.get()) == cudaSuccess);
  CHECK(absent.values(stream) == std::vector{kAll});
}

TEST_CASE("a block votes at barriers") {
  OwnStream stream;
  const DeviceArray<int> results(3);
  REQUIRE(start(vote, 1, 100, stream, results.get()) == cudaSuccess);
  CHECK(results.values(stream) == std::vector{25, 1, 1});
  REQUIRE(start(vote, 1, 102, stream, results.get()) == cudaSuccess);
  CHECK(results.values(stream) == std::vector{26, 0, 1});
  REQUIRE(start(vote, 1, 99, stream, results.get()) == cudaSuccess);
  CHECK(results.values(stream) == std::vector{25, 1, 0});
}

TEST_CASE("atomic additions from two streams are exact") {
  OwnStream first, second;
  const DeviceArray<unsigned> count(std::vector<unsigned>{0});
  const DeviceArray<float> sum(std::vector<float>{0});
  for (const cudaStream_t stream : {static_cast<cudaStream_t>(first), static_cast<cudaStream_t>(second)})
    REQUIRE(start(count_up, 100, 1000, stream, count.get(), sum.get()) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(count.values(first) == std::vector{200'000u});
  CHECK(sum.values(first) == std::vector{100'000.0f});
}

TEST_CASE("kernel parameters are copied at launch") {
  Gate gate;
  OwnStream stream;
  const DeviceArray<int> value(std::vector<int>{5});
  gate.close(stream);
  Parameters parameters{3, 1};
  REQUIRE(start(scale, 1, 1, stream, parameters, value.get()) == cudaSuccess);
  parameters = {100, 100};
  gate.open();
  CHECK(value.values(stream) == std::vector{16});
}

TEST_CASE("launches that CUDA rejects are rejected") {
  OwnStream stream;
  CHECK(start(leave_some_behind, 1, 1025, stream) == cudaErrorInvalidConfiguration);
  CHECK(start(leave_some_behind, 0, 32, stream) == cudaErrorInvalidConfiguration);
  CHECK(start(leave_some_behind, dim3(1, 65536), 32, stream) == cudaErrorInvalidConfiguration);
}

TEST_CASE("undefined behaviour in CUDA ends the program") {
  const auto run = [](void (*kernel)()) {
    return ending_of([=] {
      OwnStream stream;
      start(kernel, 1, 32, stream);
      cudaStreamSynchronize(stream);
    });
  };
  for (const auto kernel : {&leave_some_behind, &meet_at_different_barriers}) {
    const Ending ending = run(kernel);
    CHECK(ending.signal == SIGABRT);
    CHECK(ending.text.find("wait for each other at different barriers") != std::string::npos);
  }
  const Ending ending = run(call_outside_of_mask);
  CHECK(ending.signal == SIGABRT);
  CHECK(ending.text.find("not in the mask") != std::string::npos);
}

TEST_CASE("misaligned accesses of kernels end the program") {
  const DeviceArray<float> from(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}), to(8);
  const auto ending_after_copy = [&](std::size_t from_begin, std::size_t to_begin) {
    return ending_of([&] {
      OwnStream stream;
      start(copy_four, 1, 1, stream, from.get() + from_begin, to.get() + to_begin);
      cudaStreamSynchronize(stream);
    });
  };
  CHECK(ending_after_copy(4, 0).text == "");
  CHECK(ending_after_copy(1, 0).text.find("misaligned address") != std::string::npos);
  CHECK(ending_after_copy(0, 2).text.find("misaligned address") != std::string::npos);
}
