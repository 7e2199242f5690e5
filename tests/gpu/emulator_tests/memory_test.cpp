#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "tests/gpu/emulator_tests/emulation_test.h"

namespace {

__global__ void write_at(char* memory, std::size_t place) {
  memory[place] = 1;
}

Ending ending_after_writing_at(std::size_t bytes, std::size_t place, bool freed) {
  return ending_of([=] {
    char* memory = nullptr;
    cudaMalloc(&memory, bytes);
    if (freed) cudaFree(memory);
    OwnStream stream;
    start(write_at, 1, 1, stream, memory, place);
    cudaStreamSynchronize(stream);
    if (!freed) cudaFree(memory);
  });
}

void check_fault(const Ending& ending, const std::string& reason) {
  CHECK(ending.signal == SIGSEGV);
  CHECK_THAT(ending.text, Catch::Contains("illegal access") && Catch::Contains(reason));
}

struct Pinned {
  explicit Pinned(std::size_t count) { cudaMallocHost(&values, count * sizeof(int)); }
  ~Pinned() { cudaFreeHost(values); }
  int* values = nullptr;
};

}  // namespace

TEST_CASE("new memory is filled with NaN and aligned as CUDA's") {
  OwnStream stream;
  for (const std::size_t count : {1, 63, 64, 1000, 100'000}) {
    const DeviceArray<unsigned> memory(count);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.get()) % 256 == 0);
    CHECK(memory.values(stream) == std::vector<unsigned>(count, 0xffffffff));
  }
}

TEST_CASE("access outside of allocated memory ends the program") {
  CHECK(ending_after_writing_at(1000, 999, false).signal == 0);
  CHECK(ending_after_writing_at(1000, 1000, false).signal == SIGABRT);  // found when it is freed
  check_fault(ending_after_writing_at(1000, 1024, false), "no memory");
  check_fault(ending_after_writing_at(1000, 0, true), "freed memory");
}

TEST_CASE("the host cannot access device memory, nor can libraries and system calls that it calls") {
  const DeviceArray<char> device(std::vector<char>(100, 'a'));
  CHECK(ending_of([&] { return static_cast<void>(*const_cast<volatile char*>(device.get())); }).signal == SIGSEGV);
  check_fault(ending_of([&] {
                OwnStream stream;
                cudaMemsetAsync(device.get(), 'b', 100, stream);
                cudaStreamSynchronize(stream);
                *const_cast<volatile char*>(device.get()) = 'c';
              }),
              "memory of a device, which the host cannot access");
  CHECK(ending_of([&] { std::vector<char>(device.get(), device.get() + 100); }).signal == SIGSEGV);
  CHECK(write(STDOUT_FILENO, device.get(), 1) == -1);
  CHECK(errno == EFAULT);
}

TEST_CASE("a device's memory is limited, and the free amount is reported") {
  std::size_t before = 0, between = 0, after = 0, total = 0;
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, std::size_t{1} << 50) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  REQUIRE(cudaMemGetInfo(&before, &total) == cudaSuccess);
  REQUIRE(cudaMalloc(&memory, 12345) == cudaSuccess);
  cudaMemGetInfo(&between, &total);
  REQUIRE(cudaFree(memory) == cudaSuccess);
  cudaMemGetInfo(&after, &total);
  CHECK(before - between == 12345);
  CHECK(after == before);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);  // a second time
  CHECK(cudaFree(nullptr) == cudaSuccess);
}

TEST_CASE("copies from pinned memory read it in stream order, from pageable memory immediately") {
  Gate gate;
  OwnStream stream;
  const Pinned pinned(1);
  std::vector<int> registered{10}, pageable{20};
  const DeviceArray<int> to(3);
  pinned.values[0] = 1;
  REQUIRE(cudaHostRegister(registered.data(), sizeof(int), cudaHostRegisterDefault) == cudaSuccess);
  gate.close(stream);
  cudaMemcpyAsync(to.get(), pinned.values, sizeof(int), cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(to.get() + 1, registered.data(), sizeof(int), cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(to.get() + 2, pageable.data(), sizeof(int), cudaMemcpyHostToDevice, stream);
  pinned.values[0] = 2;
  registered[0] = 11;
  pageable[0] = 21;
  gate.open();
  CHECK(to.values(stream) == std::vector{2, 11, 20});  // which waits, as it copies to pageable memory
  REQUIRE(cudaHostUnregister(registered.data()) == cudaSuccess);
}

TEST_CASE("copies to pinned memory are asynchronous and in order") {
  Gate gate;
  OwnStream stream;
  const Pinned pinned(2);
  std::memset(pinned.values, 0, 2 * sizeof(int));
  const DeviceArray<int> from(std::vector<int>{3, 4});
  gate.close(stream);
  REQUIRE(cudaMemcpyAsync(pinned.values, from.get(), 2 * sizeof(int), cudaMemcpyDefault, stream) == cudaSuccess);
  REQUIRE(cudaMemsetAsync(from.get(), 0, 2 * sizeof(int), stream) == cudaSuccess);
  CHECK(pinned.values[0] == 0);
  gate.open();
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(pinned.values[0] == 3);
  CHECK(pinned.values[1] == 4);
  CHECK(from.values(stream) == std::vector{0, 0});
}

TEST_CASE("copies check the kind of memory") {
  std::vector<int> host(4);
  const DeviceArray<int> device(4), other(4);
  CHECK(cudaMemcpy(host.data(), device.get(), 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(device.get(), host.data(), 4, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(device.get(), other.get(), 20, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);  // too long
  CHECK(cudaMemset(host.data(), 0, 4) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(device.get(), other.get(), 16, cudaMemcpyDeviceToDevice) == cudaSuccess);
  CHECK(cudaHostRegister(host.data(), 16, 0) == cudaSuccess);
  CHECK(cudaHostRegister(host.data() + 1, 4, 0) == cudaErrorHostMemoryAlreadyRegistered);
  CHECK(cudaHostUnregister(host.data() + 1) == cudaErrorHostMemoryNotRegistered);
  CHECK(cudaHostUnregister(host.data()) == cudaSuccess);
  cudaPointerAttributes attributes;
  REQUIRE(cudaPointerGetAttributes(&attributes, device.get() + 3) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeDevice);
  REQUIRE(cudaPointerGetAttributes(&attributes, host.data()) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
}
