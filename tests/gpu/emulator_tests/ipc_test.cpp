#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "tests/gpu/emulator/cuda.h"
#include "tests/gpu/emulator_tests/emulation_test.h"

// Two processes: this one creates memory and an event, and starts this program again for a hidden test case, which
// reads their handles and addresses from its environment.

namespace {

constexpr std::size_t kCount = 1000;
constexpr const char *kMemory = "EMULATION_TEST_MEMORY", *kFlags = "EMULATION_TEST_FLAGS",
                     *kEvent = "EMULATION_TEST_EVENT", *kAddress = "EMULATION_TEST_ADDRESS";

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

// Runs the hidden test case.
int status_of_peer(const char* tag) {
  const char* const arguments[] = {"peer", tag, nullptr};
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char**>(arguments), environ) == 0);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

// The end of a process whose kernel writes there.
Ending ending_after_filling(int* values) {
  return ending_of([=] {
    OwnStream stream;
    start(fill, 4, 256, stream, values, kCount);
    cudaStreamSynchronize(stream);
  });
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

  const int status = status_of_peer("[peer]");
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

TEST_CASE("memory of another process can be used only while it is open") {
  const DeviceArray<int> values(std::vector<int>(kCount, 7));
  cudaIpcMemHandle_t memory;
  REQUIRE(cudaIpcGetMemHandle(&memory, values.get()) == cudaSuccess);
  put(kMemory, memory);
  setenv(kAddress, std::to_string(address_of(reinterpret_cast<std::uint32_t*>(values.get()))).c_str(), 1);
  CHECK(status_of_peer("[intruder]") == 0);
  OwnStream stream;
  CHECK(values.values(stream) == std::vector<int>(kCount, 7));
}

TEST_CASE("a process that uses another's memory before and after it is open", "[.][intruder]") {
  int* const theirs = reinterpret_cast<int*>(std::stoull(std::getenv(kAddress)));
  const DeviceArray<int> own(kCount);
  const auto try_all_at = [&](int* values, const char* reason) {
    const Ending ending = ending_after_filling(values);
    CHECK(ending.signal == SIGSEGV);
    CHECK_THAT(ending.text, Catch::Contains(reason));
    CHECK(cudaMemcpy(own.get(), values, sizeof(int), cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemset(values, 0, sizeof(int)) == cudaErrorInvalidValue);
    const auto flag = address_of(reinterpret_cast<std::uint32_t*>(values));
    CHECK(entry_point("cuStreamWriteValue32")(nullptr, flag, 1, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(entry_point("cuStreamWaitValue32")(nullptr, flag, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  };
  try_all_at(theirs, "memory of another process that this one has not opened");

  void* opened = nullptr;
  REQUIRE(cudaIpcOpenMemHandle(&opened, take<cudaIpcMemHandle_t>(kMemory), 0) == cudaSuccess);
  int* const values = static_cast<int*>(opened);
  CHECK(cudaMemcpy(own.get(), values, sizeof(int), cudaMemcpyDeviceToDevice) == cudaSuccess);
  CHECK(ending_after_filling(theirs).signal == SIGSEGV);  // still not its address here

  REQUIRE(cudaIpcCloseMemHandle(values) == cudaSuccess);
  try_all_at(values, "memory of another process that this one has closed");
}

// A fork of the owner is both here: it has the owner's memory, and can open it like another process.
TEST_CASE("memory must be closed by other processes before it is freed") {
  const auto ending_after_freeing = [&](bool closed) {
    int* values = nullptr;
    cudaIpcMemHandle_t memory;
    REQUIRE(cudaMalloc(&values, kCount * sizeof(int)) == cudaSuccess);
    REQUIRE(cudaIpcGetMemHandle(&memory, values) == cudaSuccess);
    return ending_of([&] {
      void* opened = nullptr;
      cudaIpcOpenMemHandle(&opened, memory, 0);
      if (closed) cudaIpcCloseMemHandle(opened);
      cudaFree(values);  // for the owner too
    });
  };
  CHECK(ending_after_freeing(true).text == "");
  const Ending ending = ending_after_freeing(false);
  CHECK(ending.signal == SIGABRT);
  CHECK_THAT(ending.text, Catch::Contains("memory is freed that another process has not closed yet"));
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
