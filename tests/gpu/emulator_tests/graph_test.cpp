#include <catch2/catch.hpp>
#include <thread>

#include "tests/gpu/emulator_tests/emulation_test.h"

namespace {

__global__ void add_to(int* value, int added) {
  *value += added;
}

// Captures this work in a graph, or returns the error.
cudaError_t capture(cudaStream_t stream, cudaGraphExec_t& executable, const std::function<void()>& work,
                    cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
  REQUIRE(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
  work();
  cudaGraph_t graph = nullptr;
  const cudaError_t result = cudaStreamEndCapture(stream, &graph);
  if (result != cudaSuccess) return result;
  REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  return cudaGraphDestroy(graph);
}

// The same for work that must not be captured.
cudaError_t end_of_capture(cudaStream_t stream, const std::function<void()>& work,
                           cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
  cudaGraphExec_t executable = nullptr;
  const cudaError_t result = capture(stream, executable, work, mode);
  if (result == cudaSuccess) cudaGraphExecDestroy(executable);
  return result;
}

}  // namespace

TEST_CASE("captured work runs at each launch of the graph") {
  OwnStream stream;
  const DeviceArray<int> value(std::vector<int>{1}), copy(std::vector<int>{0});
  cudaGraphExec_t executable = nullptr;
  int added = 10;
  REQUIRE(capture(stream, executable, [&] {
            start(add_to, 1, 1, stream, value.get(), added);
            cudaMemcpyAsync(copy.get(), value.get(), sizeof(int), cudaMemcpyDeviceToDevice, stream);
            start(add_to, 1, 1, stream, value.get(), 1);
            cudaStreamCaptureStatus status;
            cudaStreamIsCapturing(stream, &status);
            CHECK(status == cudaStreamCaptureStatusActive);
          }) == cudaSuccess);
  added = 1000;  // too late
  CHECK(value.values(stream) == std::vector{1});
  for (int i = 0; i < 3; ++i) REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);  // launches go on
  CHECK(value.values(stream) == std::vector{34});
  CHECK(copy.values(stream) == std::vector{33});
}

TEST_CASE("blocking calls invalidate a capture") {
  OwnStream stream;
  const DeviceArray<int> value(std::vector<int>{1});
  void* memory = nullptr;
  CHECK(end_of_capture(stream, [&] { CHECK(cudaMalloc(&memory, 4) == cudaErrorStreamCaptureUnsupported); }) ==
        cudaErrorStreamCaptureInvalidated);
  CHECK(end_of_capture(stream, [&] { CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported); }) ==
        cudaErrorStreamCaptureInvalidated);
  CHECK(end_of_capture(stream, [&] { CHECK(cudaStreamQuery(stream) == cudaErrorStreamCaptureUnsupported); }) ==
        cudaErrorStreamCaptureInvalidated);
  CHECK(end_of_capture(stream, [&] { CHECK(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported); }) ==
        cudaErrorStreamCaptureInvalidated);
  CHECK(end_of_capture(stream, [&] {
          CHECK(cudaMemset(value.get(), 0, 4) == cudaErrorStreamCaptureImplicit);
          CHECK(start(add_to, 1, 1, stream, value.get(), 1) == cudaErrorStreamCaptureInvalidated);
        }) == cudaErrorStreamCaptureInvalidated);
  CHECK(value.values(stream) == std::vector{1});
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);  // there is none
}

TEST_CASE("other threads may allocate during a thread-local capture, but not during a global one") {
  OwnStream stream;
  cudaError_t result = cudaErrorNotReady;
  const auto allocate_elsewhere = [&] {
    std::thread([&] {
      void* memory = nullptr;
      result = cudaMalloc(&memory, 4);
      if (result == cudaSuccess) cudaFree(memory);
    }).join();
  };
  CHECK(end_of_capture(stream, allocate_elsewhere, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(result == cudaSuccess);
  CHECK(end_of_capture(stream, allocate_elsewhere, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureInvalidated);
  CHECK(result == cudaErrorStreamCaptureUnsupported);
}

TEST_CASE("no thread may wait for a device of which a stream is captured") {
  OwnStream stream;
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    cudaError_t result = cudaSuccess;
    const auto wait_elsewhere = [&] { std::thread([&] { result = cudaDeviceSynchronize(); }).join(); };
    CHECK(end_of_capture(stream, wait_elsewhere, mode) == cudaErrorStreamCaptureInvalidated);
    CHECK(result == cudaErrorStreamCaptureUnsupported);
  }
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("an event within a capture only orders work; one from outside is an error") {
  OwnStream stream, other;
  cudaEvent_t event = nullptr, before = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&before, cudaEventDisableTiming);
  cudaEventRecord(before, stream);
  CHECK(end_of_capture(stream, [&] {
          CHECK(cudaEventRecord(event, stream) == cudaSuccess);
          CHECK(cudaStreamWaitEvent(stream, event) == cudaSuccess);
          CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent);
        }) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
  CHECK(end_of_capture(stream, [&] {
          CHECK(cudaStreamWaitEvent(stream, before) == cudaErrorStreamCaptureIsolation);
        }) == cudaErrorStreamCaptureInvalidated);
  for (const cudaEvent_t old : {event, before}) cudaEventDestroy(old);
}

TEST_CASE("external events are waited for and recorded at every launch") {
  Gate gate;
  OwnStream stream, other;
  const DeviceArray<int> value(std::vector<int>{1});
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreateWithFlags(&begin, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&end, cudaEventDisableTiming);
  cudaGraphExec_t executable = nullptr;
  REQUIRE(capture(stream, executable, [&] {
            cudaStreamWaitEvent(stream, begin, cudaEventWaitExternal);
            start(add_to, 1, 1, stream, value.get(), 1);
            cudaEventRecordWithFlags(end, stream, cudaEventRecordExternal);
          }) == cudaSuccess);
  gate.close(other);
  cudaEventRecord(begin, other);
  REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  gate.open();
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  REQUIRE(cudaEventSynchronize(end) == cudaSuccess);
  CHECK(value.values(stream) == std::vector{2});
  cudaGraphExecDestroy(executable);
  for (const cudaEvent_t old : {begin, end}) cudaEventDestroy(old);
}

TEST_CASE("a stream waits for the external event of the last launch, which may be set for each launch") {
  OwnStream stream, other;
  const DeviceArray<int> value(std::vector<int>{1}), seen(std::vector<int>{0});
  cudaEvent_t captured = nullptr, event = nullptr;
  cudaEventCreateWithFlags(&captured, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  CHECK(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal) == cudaErrorInvalidValue);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  start(add_to, 1, 1, stream, value.get(), 1);
  cudaEventRecordWithFlags(captured, stream, cudaEventRecordExternal);
  start(add_to, 1, 1, stream, value.get(), 10);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  std::size_t count = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess);
  std::vector<cudaGraphNode_t> nodes(count);
  REQUIRE(cudaGraphGetNodes(graph, nodes.data(), &count) == cudaSuccess);
  REQUIRE(count == 3);
  CHECK(cudaGraphExecEventRecordNodeSetEvent(executable, nodes[0], event) == cudaErrorInvalidValue);
  cudaEvent_t found = nullptr;
  REQUIRE(cudaGraphEventRecordNodeGetEvent(nodes[1], &found) == cudaSuccess);
  CHECK(found == captured);
  for (int launch = 0; launch < 2; ++launch) {
    Gate gate;
    REQUIRE(cudaGraphExecEventRecordNodeSetEvent(executable, nodes[1], event) == cudaSuccess);
    gate.close(stream);
    REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(other, event) == cudaSuccess);
    start(add_to, 1, 1, other, seen.get(), 1);
    CHECK(cudaStreamQuery(other) == cudaErrorNotReady);
    CHECK(cudaEventQuery(event) == cudaErrorNotReady);
    gate.open();
    CHECK(seen.values(other) == std::vector{launch + 1});
    CHECK(cudaEventQuery(event) == cudaSuccess);
    CHECK(value.values(stream) == std::vector{1 + 11 * (launch + 1)});
  }
  CHECK(cudaEventQuery(captured) == cudaSuccess);  // never recorded
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  for (const cudaEvent_t old : {captured, event}) cudaEventDestroy(old);
}
