#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "tests/gpu/emulator/cuda.h"
#include "tests/gpu/emulator_tests/emulation_test.h"

// Two processes: this one creates memory and an event, and starts this program again for the test case tagged [peer],
// which reads their handles from its environment.

namespace {

constexpr std::size_t kCount = 1000;
constexpr const char *kMemory = "EMULATION_TEST_MEMORY", *kFlags = "EMULATION_TEST_FLAGS",
                     *kEvent = "EMULATION_TEST_EVENT";

using MemoryOperation = CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned);

MemoryOperation* entry_point(const char* name) {
  void* function = nullptr;
  REQUIRE(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault) == cudaSuccess);
  return reinterpret_cast<MemoryOperation*>(function);
}

CUdeviceptr address_of(const std::uint32_t* word) {
  return reinterpret_cast<CUdeviceptr>(word);
}

template <class Handle>
void put(const char* name, const Handle& handle) {
  std::string text;
  for (const char byte : handle.reserved)
    text += {static_cast<char>('a' + (byte >> 4 & 15)), static_cast<char>('a' + (byte & 15))};
  setenv(name, text.c_str(), 1);
}

template <class Handle>
Handle take(const char* name) {
  const char* const text = std::getenv(name);
  REQUIRE(text != nullptr);
  Handle handle;
  for (std::size_t i = 0; i < sizeof(handle.reserved); ++i)
    handle.reserved[i] = static_cast<char>((text[2 * i] - 'a') << 4 | (text[2 * i + 1] - 'a'));
  return handle;
}

__global__ void fill(int* values, std::size_t count) {
  const std::size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = static_cast<int>(i);
}

__global__ void double_all(int* values, std::size_t count) {
  const std::size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= 2;
}

int status_of_peer() {
  const char* const arguments[] = {"peer", "[peer]", nullptr};
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments), environ) == 0);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("two processes share a device's memory and an event") {
  OwnStream stream;
  const DeviceArray<int> values(kCount);
  const DeviceArray<std::uint32_t> flags(std::vector<std::uint32_t>{0, 0});
  cudaEvent_t filled = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming | cudaEventInterprocess) == cudaSuccess);
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  REQUIRE(cudaIpcGetMemHandle(&memory, values.get()) == cudaSuccess);
  put(kMemory, memory);
  REQUIRE(cudaIpcGetMemHandle(&memory, flags.get()) == cudaSuccess);
  put(kFlags, memory);
  REQUIRE(cudaIpcGetEventHandle(&event, filled) == cudaSuccess);
  put(kEvent, event);

  // Begins only when the peer has seen that the event has not happened yet.
  auto* const wait = entry_point("cuStreamWaitValue32");
  REQUIRE(wait(stream, address_of(flags.get()), 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
  REQUIRE(start(fill, 4, 256, stream, values.get(), kCount) == cudaSuccess);
  REQUIRE(cudaEventRecord(filled, stream) == cudaSuccess);
  REQUIRE(wait(stream, address_of(flags.get() + 1), 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);

  const int status = status_of_peer();
  // Without the peer, this would wait forever.
  if (status != 0) entry_point("cuStreamWriteValue32")(nullptr, address_of(flags.get()), 1, 0);
  if (status != 0) entry_point("cuStreamWriteValue32")(nullptr, address_of(flags.get() + 1), 1, 0);
  REQUIRE(status == 0);
  std::vector<int> wanted(kCount);
  std::iota(wanted.begin(), wanted.end(), 0);
  for (int& value : wanted) value *= 2;
  CHECK(values.values(stream) == wanted);
  cudaEventDestroy(filled);
}

TEST_CASE("the other of two processes", "[.][peer]") {
  int* values = nullptr;
  std::uint32_t* flags = nullptr;
  cudaEvent_t filled = nullptr;
  const auto memory = take<cudaIpcMemHandle_t>(kMemory);
  REQUIRE(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&values), memory, cudaIpcMemLazyEnablePeerAccess) ==
          cudaSuccess);
  REQUIRE(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&flags), take<cudaIpcMemHandle_t>(kFlags), 0) == cudaSuccess);
  REQUIRE(cudaIpcOpenEventHandle(&filled, take<cudaIpcEventHandle_t>(kEvent)) == cudaSuccess);

  void* again = nullptr;
  REQUIRE(cudaIpcOpenMemHandle(&again, memory, 0) == cudaSuccess);
  CHECK(again == values);
  REQUIRE(cudaIpcCloseMemHandle(again) == cudaSuccess);  // it stays open for the first opening

  OwnStream stream;
  CHECK(cudaEventQuery(filled) == cudaErrorNotReady);
  auto* const write = entry_point("cuStreamWriteValue32");
  REQUIRE(write(stream, address_of(flags), 1, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cudaStreamWaitEvent(stream, filled) == cudaSuccess);
  REQUIRE(start(double_all, 4, 256, stream, values, kCount) == cudaSuccess);
  REQUIRE(write(stream, address_of(flags + 1), 1, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  REQUIRE(cudaIpcCloseMemHandle(values) == cudaSuccess);
  CHECK(cudaIpcCloseMemHandle(values) == cudaErrorInvalidValue);
  cudaEventDestroy(filled);
}

TEST_CASE("a process cannot open its own handles") {
  const DeviceArray<int> values(4);
  cudaIpcMemHandle_t memory;
  void* opened = nullptr;
  REQUIRE(cudaIpcGetMemHandle(&memory, values.get()) == cudaSuccess);
  CHECK(cudaIpcOpenMemHandle(&opened, memory, 0) == cudaErrorDeviceUninitialized);
  CHECK(cudaIpcGetMemHandle(&memory, values.get() + 1) == cudaErrorInvalidValue);  // not its begin
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventInterprocess) == cudaErrorInvalidValue);  // it would be timed
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  cudaIpcEventHandle_t handle;
  CHECK(cudaIpcGetEventHandle(&handle, event) == cudaErrorInvalidResourceHandle);
  cudaEventDestroy(event);
}
