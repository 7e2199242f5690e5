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

__global__ void sum_in_last_block(int* values, unsigned* done) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    values[blockIdx.x] = static_cast<int>(blockIdx.x);
    last = atomicAdd(done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x > 0) return;
  for (unsigned block = 1; block < gridDim.x; ++block) values[0] += values[block];
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
  unsigned* zero() const { return zero_.get(); }
  unsigned char* bytes() const { return bytes_.get(); }

 private:
  DeviceArray<int> values_{std::vector<int>(4 * kThreads, 1)};
  DeviceArray<unsigned> zero_{std::vector<unsigned>{0}};
  DeviceArray<unsigned char> bytes_{std::size_t{4} * kThreads};
};

void check_race(const Ending& ending, const std::string& text) {
  CHECK(ending.signal == SIGABRT);
  CHECK_THAT(ending.text, Catch::Contains("a race in " + text) && Catch::Contains("no barrier orders them"));
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
  check_race(memory.ending_after(sum_in_last_block, 3, memory.values(), memory.zero()), "device memory");
  check_race(memory.ending_after(add_neighbour, 3, memory.values()), "device memory");
  check_race(memory.ending_after(count_without_atomics, 2, memory.values()), "device memory");
  check_race(memory.ending_after(read_what_others_count, 2, memory.values()), "device memory");
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

TEST_CASE("the report of a race names the threads") {
  const MemoryOfKernels memory;
  CHECK_THAT(memory.ending_after(count_without_atomics, 2, memory.values()).text,
             Catch::Contains("thread 0 of block 0") && Catch::Contains("thread 0 of block 1") &&
                 Catch::Contains("reads 4 bytes") && Catch::Contains("has written"));
}
