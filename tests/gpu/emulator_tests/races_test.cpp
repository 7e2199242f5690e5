#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>

#include "tests/gpu/emulator_tests/emulation_test.h"

namespace {

constexpr unsigned kThreads = 64;

// Each of these mistakes is in a kernel that gives the right result in the order in which threads and blocks run here,
// or could.

__global__ void no_barrier(int* values) {
  __shared__ int block[kThreads];
  block[threadIdx.x] = values[threadIdx.x];
  values[threadIdx.x] = block[kThreads - 1 - threadIdx.x];
}

// The first barrier is there, but nothing keeps a fast warp from the next round's writes.
__global__ void no_barrier_before_next_round(int* values) {
  __shared__ int block[kThreads];
  for (int round = 0; round < 2; ++round) {
    block[threadIdx.x] = values[threadIdx.x] + round;
    __syncthreads();
    values[threadIdx.x] = block[kThreads - 1 - threadIdx.x];
  }
}

__global__ void barrier_of_warps_only(int* values) {
  __shared__ int block[kThreads];
  block[threadIdx.x] = values[threadIdx.x];
  __syncwarp();
  values[threadIdx.x] = block[kThreads - 1 - threadIdx.x];
}

// Lanes of a warp do not run in step, and a shuffle orders no memory.
__global__ void lanes_in_step(int* values) {
  __shared__ int block[kThreads];
  block[threadIdx.x] = __shfl_xor_sync(0xffffffffu, values[threadIdx.x], 1);
  values[threadIdx.x] = block[threadIdx.x ^ 1];
}

__global__ void byte_of_a_word(int* values) {
  if (threadIdx.x == 0) values[0] = 2;
  if (threadIdx.x == 1) reinterpret_cast<unsigned char*>(values)[1] = 1;
}

enum class Mistake { none, no_barrier, no_fence_before, fence_of_block, no_fence_after, other_counter, first_block };

// The last block that arrives adds up all blocks' values.
template <Mistake mistake>
__global__ void sum_in_last_block(int* values, unsigned* done) {
  __shared__ bool last;
  values[blockIdx.x * kThreads + threadIdx.x] = static_cast<int>(blockIdx.x);
  if (mistake != Mistake::no_barrier) __syncthreads();
  if (threadIdx.x == 0) {
    if (mistake == Mistake::fence_of_block) __threadfence_block();
    if (mistake != Mistake::fence_of_block && mistake != Mistake::no_fence_before) __threadfence();
    const unsigned before = atomicAdd(done + (mistake == Mistake::other_counter ? blockIdx.x : 0), 1u);
    last = mistake == Mistake::other_counter ? blockIdx.x == gridDim.x - 1
                                             : before == (mistake == Mistake::first_block ? 0 : gridDim.x - 1);
    if (mistake != Mistake::no_fence_after) __threadfence();
  }
  __syncthreads();
  if (!last) return;
  for (unsigned block = 0; block < gridDim.x; ++block)
    if (block != blockIdx.x)
      values[blockIdx.x * kThreads + threadIdx.x] += values[(block + 1) * kThreads - 1 - threadIdx.x];
}

// Overwrites what the next block reads, or has read.
__global__ void add_neighbour(int* values) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i + 1 < gridDim.x * blockDim.x) values[i] += values[i + 1];
}

__global__ void count_without_atomics(int* values) {
  if (threadIdx.x == 0) ++values[0];
}

__global__ void read_what_others_count(int* values) {
  atomicAdd(values, 1);
  if (threadIdx.x == kThreads - 1) values[1] = values[0];
}

__global__ void all_in_order(int* values, unsigned char* bytes) {
  __shared__ int block[kThreads];
  for (int round = 0; round < 2; ++round) {
    block[threadIdx.x] = values[1 + blockIdx.x * kThreads + threadIdx.x];
    __syncthreads();
    const int other = block[kThreads - 1 - threadIdx.x];
    __syncthreads();
    block[threadIdx.x] = other;
    __syncwarp();
    values[1 + blockIdx.x * kThreads + threadIdx.x] = block[threadIdx.x ^ 1];
    __syncthreads();
  }
  bytes[blockIdx.x * kThreads + threadIdx.x] = 1;  // of one word by four threads
  atomicAdd(values, 1);
}

enum class Await { first, after_access, not_everywhere };

template <Await await>
__global__ void add_one(int* values) {
  int value = await == Await::after_access ? values[threadIdx.x] : 0;
  if (await == Await::not_everywhere && threadIdx.x > 0) return;
  cudaGridDependencySynchronize();
  if (await != Await::after_access) value = values[threadIdx.x];
  values[threadIdx.x] = value + 1;
}

class MemoryOfKernels {
 public:
  template <class... Parameters>
  Ending ending_after(void (*kernel)(Parameters...), unsigned blocks, auto*... arguments) const {
    return ending_of([=] {
      setenv("ANNULUS_EMULATED_RACES", "1", 1);
      OwnStream stream;
      start(kernel, blocks, kThreads, stream, arguments...);
      cudaStreamSynchronize(stream);
    });
  }

  int* values() const { return values_.get(); }
  unsigned* zeros() const { return zeros_.get(); }
  unsigned char* bytes() const { return bytes_.get(); }

 private:
  DeviceArray<int> values_{std::vector<int>(4 * kThreads, 1)};
  DeviceArray<unsigned> zeros_{std::vector<unsigned>(3)};
  DeviceArray<unsigned char> bytes_{std::size_t{4} * kThreads};
};

void check_race(const Ending& ending, const std::string& text) {
  CHECK(ending.signal == SIGABRT);
  CHECK_THAT(ending.text,
             Catch::Contains("a race in " + text) && Catch::Contains("neither a barrier nor fences order them"));
}

}  // namespace

TEST_CASE("races within a block are reported") {
  const MemoryOfKernels memory;
  check_race(memory.ending_after(no_barrier, 1, memory.values()), "shared memory");
  check_race(memory.ending_after(no_barrier_before_next_round, 1, memory.values()), "shared memory");
  check_race(memory.ending_after(barrier_of_warps_only, 1, memory.values()), "shared memory");
  check_race(memory.ending_after(lanes_in_step, 1, memory.values()), "shared memory");
  check_race(memory.ending_after(byte_of_a_word, 1, memory.values()), "device memory");
}

TEST_CASE("races between blocks are reported") {
  const MemoryOfKernels memory;
  check_race(memory.ending_after(add_neighbour, 3, memory.values()), "device memory");
  check_race(memory.ending_after(count_without_atomics, 2, memory.values()), "device memory");
  check_race(memory.ending_after(read_what_others_count, 2, memory.values()), "device memory");
}

TEST_CASE("fences and atomics order blocks, and mistakes with them are reported") {
  const auto ending = [](auto* kernel) {
    const MemoryOfKernels memory;
    return memory.ending_after(kernel, 3, memory.values(), memory.zeros());
  };
  CHECK(ending(sum_in_last_block<Mistake::none>).text == "");
  check_race(ending(sum_in_last_block<Mistake::no_barrier>), "device memory");
  check_race(ending(sum_in_last_block<Mistake::no_fence_before>), "device memory");
  check_race(ending(sum_in_last_block<Mistake::fence_of_block>), "device memory");
  check_race(ending(sum_in_last_block<Mistake::no_fence_after>), "device memory");
  check_race(ending(sum_in_last_block<Mistake::other_counter>), "device memory");
  check_race(ending(sum_in_last_block<Mistake::first_block>), "device memory");
}

TEST_CASE("kernels without races are not reported, nor are consecutive kernels") {
  const MemoryOfKernels memory;
  CHECK(memory.ending_after(all_in_order, 3, memory.values(), memory.bytes()).text == "");
  const Ending ending = ending_of([&] {
    setenv("ANNULUS_EMULATED_RACES", "1", 1);
    OwnStream stream;
    for (int i = 0; i < 2; ++i) start(count_without_atomics, 1, kThreads, stream, memory.values());
    cudaStreamSynchronize(stream);
  });
  CHECK(ending.text == "");
}

TEST_CASE("kernels that may start early and do not await their predecessor first are reported") {
  const MemoryOfKernels memory;
  const auto ending_after = [&](void (*kernel)(int*), bool early) {
    return ending_of([&] {
      setenv("ANNULUS_EMULATED_RACES", "1", 1);
      OwnStream stream;
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = early;
      cudaLaunchConfig_t configuration{};
      configuration.gridDim = 1;
      configuration.blockDim = kThreads;
      configuration.stream = stream;
      configuration.attrs = &attribute;
      configuration.numAttrs = 1;
      cudaLaunchKernelEx(&configuration, kernel, memory.values());
      cudaStreamSynchronize(stream);
    });
  };
  CHECK(ending_after(add_one<Await::first>, true).text == "");
  for (const auto kernel : {add_one<Await::after_access>, add_one<Await::not_everywhere>}) {
    CHECK(ending_after(kernel, false).text == "");
    const Ending ending = ending_after(kernel, true);
    CHECK(ending.signal == SIGABRT);
    CHECK_THAT(ending.text, Catch::Contains("cudaGridDependencySynchronize"));
  }
}

TEST_CASE("the report of a race names the threads") {
  const MemoryOfKernels memory;
  CHECK_THAT(memory.ending_after(count_without_atomics, 2, memory.values()).text,
             Catch::Contains("thread 0 of block 0") && Catch::Contains("thread 0 of block 1") &&
                 Catch::Contains("reads 4 bytes") && Catch::Contains("has written"));
}
