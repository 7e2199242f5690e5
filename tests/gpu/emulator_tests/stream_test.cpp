#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "tests/gpu/emulator/cuda.h"
#include "tests/gpu/emulator_tests/emulation_test.h"

namespace {

// The log of completed work, in order.
class Log {
 public:
  void add(cudaStream_t stream, int entry) {
    cudaLaunchHostFunc(
        stream,
        [](void* data) {
          const std::unique_ptr<Entry> added(static_cast<Entry*>(data));
          const std::lock_guard lock(added->log->mutex_);
          added->log->entries_.push_back(added->number);
        },
        new Entry{this, entry});
  }
  std::vector<int> entries() {
    const std::lock_guard lock(mutex_);
    return entries_;
  }

 private:
  struct Entry {
    Log* log;
    int number;
  };
  std::mutex mutex_;
  std::vector<int> entries_;
};

cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, flags) == cudaSuccess);
  return event;
}

template <class Function>
Function* entry_point(const char* name) {
  void* function = nullptr;
  REQUIRE(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault) == cudaSuccess);
  return reinterpret_cast<Function*>(function);
}
using MemoryOperation = CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned);

CUdeviceptr address_of(std::uint32_t* word) {
  return reinterpret_cast<CUdeviceptr>(word);
}

}  // namespace

TEST_CASE("a stream works in order, asynchronously to the host") {
  Log log;
  Gate gate;
  OwnStream stream;
  gate.close(stream);
  for (int i = 0; i < 5; ++i) log.add(stream, i);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  CHECK(log.entries().empty());
  gate.open();
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  CHECK(log.entries() == std::vector{0, 1, 2, 3, 4});
}

TEST_CASE("streams synchronize only by events") {
  Log log;
  Gate gate;
  OwnStream first, second, third;
  const cudaEvent_t event = new_event();
  gate.close(first);
  log.add(first, 1);
  REQUIRE(cudaEventRecord(event, first) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second, event) == cudaSuccess);
  log.add(second, 2);
  log.add(third, 3);
  REQUIRE(cudaStreamSynchronize(third) == cudaSuccess);
  CHECK(log.entries() == std::vector{3});
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(second) == cudaErrorNotReady);
  gate.open();
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(log.entries() == std::vector{3, 1, 2});
  CHECK(cudaEventQuery(event) == cudaSuccess);
  cudaEventDestroy(event);
}

TEST_CASE("a stream waits for the latest record at the time of the wait call") {
  Gate first_gate, second_gate;
  OwnStream recording, waiting;
  const cudaEvent_t event = new_event();
  first_gate.close(recording);
  REQUIRE(cudaEventRecord(event, recording) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(waiting, event) == cudaSuccess);
  second_gate.close(recording);
  REQUIRE(cudaEventRecord(event, recording) == cudaSuccess);
  CHECK(cudaStreamQuery(waiting) == cudaErrorNotReady);
  first_gate.open();
  REQUIRE(cudaStreamSynchronize(waiting) == cudaSuccess);  // though the second record has not happened
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  second_gate.open();
  REQUIRE(cudaEventSynchronize(event) == cudaSuccess);
  cudaEventDestroy(event);
}

TEST_CASE("an unrecorded event does not block, and events may be destroyed while in use") {
  Gate gate;
  OwnStream first, second;
  const cudaEvent_t never = new_event(), event = new_event();
  REQUIRE(cudaStreamWaitEvent(first, never) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(first) == cudaSuccess);
  CHECK(cudaEventQuery(never) == cudaSuccess);
  gate.close(first);
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaStreamQuery(second) == cudaErrorNotReady);
  gate.open();
  REQUIRE(cudaStreamSynchronize(second) == cudaSuccess);
  cudaEventDestroy(never);
}

TEST_CASE("the time between events is measured") {
  OwnStream stream;
  const cudaEvent_t begin = new_event(cudaEventDefault), end = new_event(cudaEventDefault), untimed = new_event();
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorInvalidResourceHandle);  // not recorded
  cudaEventRecord(begin, stream);
  cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr);
  cudaEventRecord(end, stream);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorNotReady);
  REQUIRE(cudaEventSynchronize(end) == cudaSuccess);
  REQUIRE(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess);
  CHECK(milliseconds >= 20);
  CHECK(milliseconds < 5000);
  cudaEventRecord(untimed, stream);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, untimed) == cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {begin, end, untimed}) cudaEventDestroy(event);
}

TEST_CASE("stream memory operations wait for and write words") {
  auto* const wait = entry_point<MemoryOperation>("cuStreamWaitValue32");
  auto* const write = entry_point<MemoryOperation>("cuStreamWriteValue32");
  Log log;
  OwnStream waiting, writing;
  const DeviceArray<std::uint32_t> words(std::vector<std::uint32_t>{0xfffffffe, 0});
  // Cyclic: 1 comes after 0xfffffffe, and 0xffffffff comes before it.
  REQUIRE(wait(waiting, address_of(words.get()), 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
  log.add(waiting, 1);
  REQUIRE(wait(waiting, address_of(words.get() + 1), 7, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  log.add(waiting, 2);

  REQUIRE(write(writing, address_of(words.get()), 0xffffffff, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cudaStreamSynchronize(writing) == cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(log.entries().empty());
  write(writing, address_of(words.get()), 3, CU_STREAM_WRITE_VALUE_DEFAULT);
  write(writing, address_of(words.get() + 1), 8, CU_STREAM_WRITE_VALUE_DEFAULT);
  while (log.entries().empty()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(log.entries() == std::vector{1});
  write(writing, address_of(words.get() + 1), 7, CU_STREAM_WRITE_VALUE_DEFAULT);
  REQUIRE(cudaStreamSynchronize(waiting) == cudaSuccess);
  CHECK(log.entries() == std::vector{1, 2});
  CHECK(words.values(waiting) == std::vector<std::uint32_t>{3, 7});

  std::uint32_t unknown = 0;
  CHECK(wait(waiting, address_of(&unknown), 0, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_ERROR_INVALID_VALUE);
  CHECK(write(waiting, address_of(words.get()) + 2, 0, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_ERROR_INVALID_VALUE);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status;
  CHECK(cudaGetDriverEntryPoint("cuNothing", &function, cudaEnableDefault, &status) == cudaErrorSymbolNotFound);
  CHECK(status == cudaDriverEntryPointSymbolNotFound);
}

TEST_CASE("the last error persists until it is read, and the number of devices is configurable") {
  cudaGetLastError();
  CHECK(cudaSetDevice(100) == cudaErrorInvalidDevice);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(std::string(cudaGetErrorName(cudaErrorInvalidDevice)) == "cudaErrorInvalidDevice");
  CHECK(std::string(cudaGetErrorString(cudaErrorInvalidDevice)) == "invalid device ordinal");
  int count = 0;
  for (const int wanted : {3, 2}) {
    setenv("ANNULUS_EMULATED_GPUS", std::to_string(wanted).c_str(), 1);
    REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
    CHECK(count == wanted);
  }
  setenv("ANNULUS_EMULATED_GPUS", "0", 1);
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  CHECK(count == 0);
  setenv("ANNULUS_EMULATED_GPUS", "2", 1);
}

TEST_CASE("a stream belongs to the device current at its creation") {
  setenv("ANNULUS_EMULATED_GPUS", "2", 1);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  {
    OwnStream stream;
    int device = -1;
    REQUIRE(cudaLaunchHostFunc(
                stream, [](void* seen) { cudaGetDevice(static_cast<int*>(seen)); }, &device) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(device == 1);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    constexpr auto kNothing = +[](int) {};
    CHECK(start(kNothing, 1, 1, stream, 0) == cudaErrorInvalidResourceHandle);
  }
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("a full stream blocks the thread that adds work to it") {
  const auto launch_before_opening = [](int count) {
    return ending_of([=] {
             alarm(2);  // when the thread waits for itself
             OwnStream stream;
             Gate gate;
             gate.close(stream);
             for (int i = 0; i < count; ++i)
               cudaLaunchHostFunc(
                   stream, [](void*) {}, nullptr);
             gate.open();
             cudaStreamSynchronize(stream);
           })
        .signal;
  };
  CHECK(launch_before_opening(1023) == 0);
  CHECK(launch_before_opening(1024) == SIGALRM);  // the gate is part of the queue
}

TEST_CASE("a waiting stream holds up those that share its hardware queue, and no others") {
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const std::size_t queues = connections == nullptr ? 8 : std::strtoul(connections, nullptr, 10);
  REQUIRE(queues > 1);
  std::deque<OwnStream> streams(queues + 1);  // the last one shares the first one's
  const DeviceArray<std::uint32_t> flag(std::vector<std::uint32_t>{0});
  Log log;
  REQUIRE(entry_point<MemoryOperation>("cuStreamWaitValue32")(streams.front(), address_of(flag.get()), 1, 0) ==
          CUDA_SUCCESS);
  log.add(streams.back(), 1);
  for (std::size_t other = 1; other < queues; ++other) REQUIRE(cudaStreamSynchronize(streams[other]) == cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(cudaStreamQuery(streams.back()) == cudaErrorNotReady);
  CHECK(log.entries().empty());
  log.add(streams[1], 2);
  REQUIRE(entry_point<MemoryOperation>("cuStreamWriteValue32")(streams[1], address_of(flag.get()), 1, 0) ==
          CUDA_SUCCESS);
  REQUIRE(cudaStreamSynchronize(streams.back()) == cudaSuccess);
  CHECK(log.entries() == std::vector<int>{2, 1});
}

TEST_CASE("a batch of memory operations is queued in its order, or refused") {
  using Batch = CUresult(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
  auto* const batch = entry_point<Batch>("cuStreamBatchMemOp");
  OwnStream stream, other;
  const DeviceArray<std::uint32_t> flags(std::vector<std::uint32_t>{0, 0});
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = address_of(flags.get());
  operations[0].writeValue.value = 7;
  operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[1].waitValue.address = address_of(flags.get() + 1);
  operations[1].waitValue.value = 3;
  REQUIRE(batch(stream, 2, operations, 0) == CUDA_SUCCESS);
  auto* const wait = entry_point<MemoryOperation>("cuStreamWaitValue32");
  REQUIRE(wait(other, address_of(flags.get()), 7, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  REQUIRE(cudaStreamSynchronize(other) == cudaSuccess);  // written although the batch still waits
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  auto* const write = entry_point<MemoryOperation>("cuStreamWriteValue32");
  REQUIRE(write(other, address_of(flags.get() + 1), 3, 0) == CUDA_SUCCESS);
  CHECK(flags.values(stream) == std::vector<std::uint32_t>{7, 3});

  CHECK(batch(stream, 256, operations, 0) == CUDA_ERROR_INVALID_VALUE);
  operations[0].operation = static_cast<CUstreamBatchMemOpType>(3);
  CHECK(batch(stream, 1, operations, 0) == CUDA_ERROR_INVALID_VALUE);
}
