#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"

namespace emulated {
namespace {

// Is in memory that other processes may open. Records are counted when they are requested and when they happen; a wait
// is for those requested before it. If several streams record one event at the same time, the last request represents
// all of them.
struct EventState {
  std::atomic<std::uint32_t> asked, happened;
  std::atomic<double> milliseconds;  // of the last that happened
};

bool reached(const EventState& state, std::uint32_t ticket) {
  return static_cast<std::int32_t>(state.happened.load(std::memory_order_acquire) - ticket) >= 0;
}

void wait_for(EventState& state, std::uint32_t ticket) {
  while (!reached(state, ticket)) {
    const std::uint32_t seen = state.happened.load();
    if (static_cast<std::int32_t>(seen - ticket) >= 0) break;
    syscall(SYS_futex, &state.happened, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }
  stream_races::await(&state, ticket);
}

double now_milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

void happen(EventState& state, std::uint32_t ticket) {
  if (reached(state, ticket)) return;
  stream_races::signal(&state, state.happened, ticket);
  state.milliseconds = now_milliseconds();
  state.happened.store(ticket, std::memory_order_release);
  syscall(SYS_futex, &state.happened, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

}  // namespace
}  // namespace emulated

struct CUevent_st {
  std::shared_ptr<emulated::EventState> state;  // outlives the event while streams still use it
  emulated::MemoryName name;                    // of the state, if others may open it
  unsigned flags;
  int device;
  std::uint64_t captured = 0;  // number of the capture that the last record is part of; 0: of none
};

using emulated::EventState;
using emulated::remember;

namespace {

bool timed(cudaEvent_t event) {
  return (event->flags & cudaEventDisableTiming) == 0;
}

// Whether the last record went into a graph, so that there is nothing to wait for.
bool is_captured(cudaEvent_t event) {
  return event->captured != 0;
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const bool shared = (flags & cudaEventInterprocess) != 0;
  if (shared && (flags & cudaEventDisableTiming) == 0) return remember(cudaErrorInvalidValue);
  std::shared_ptr<EventState> state;
  emulated::MemoryName name{};
  if (shared) {
    void* const memory = emulated::map_shared(sizeof(EventState), name);
    state = {new (memory) EventState{}, [name](EventState* old) { emulated::unmap_shared(old, name, true); }};
  } else {
    state = std::make_shared<EventState>();
  }
  *event = new CUevent_st{std::move(state), name, flags, emulated::current_device()};
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  CUstream_st& target = emulated::resolve(stream);
  if (target.device() != event->device) return remember(cudaErrorInvalidResourceHandle);
  if (flags == cudaEventRecordExternal) {
    if (!target.capture) return remember(cudaErrorInvalidValue);
    if (!target.capture->valid) return remember(cudaErrorStreamCaptureInvalidated);
    target.capture->nodes.push_back({{}, event});
    return cudaSuccess;
  }
  event->captured = target.capture ? target.capture->number : 0;
  if (target.capture) return target.capture->valid ? cudaSuccess : remember(cudaErrorStreamCaptureInvalidated);
  return emulated::enqueue(stream, emulated::request_record(event), emulated::Kind::record);
}

emulated::Work emulated::request_record(cudaEvent_t event) {
  return [state = event->state, ticket = ++event->state->asked] { happen(*state, ticket); };
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  CUstream_st& target = emulated::resolve(stream);
  if (target.capture && flags == cudaEventWaitExternal)  // waits for records requested before the graph runs
    return emulated::enqueue(stream, [state = event->state] { emulated::wait_for(*state, state->asked); });
  if (target.capture) {
    if (!target.capture->valid) return remember(cudaErrorStreamCaptureInvalidated);
    if (event->captured == target.capture->number) return cudaSuccess;  // one stream: it is in order anyway
    target.capture->valid = false;
    return remember(cudaErrorStreamCaptureIsolation);
  }
  if (is_captured(event)) return remember(cudaErrorNotSupported);  // in CUDA this stream joins the capture
  return emulated::enqueue(
      stream, [state = event->state, ticket = event->state->asked.load()] { emulated::wait_for(*state, ticket); },
      emulated::Kind::wait);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (is_captured(event)) return remember(cudaErrorCapturedEvent);
  const std::uint32_t ticket = event->state->asked;
  if (!emulated::reached(*event->state, ticket)) return cudaErrorNotReady;
  emulated::stream_races::await(event->state.get(), ticket);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (is_captured(event)) return remember(cudaErrorCapturedEvent);
  emulated::wait_for(*event->state, event->state->asked);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  for (const cudaEvent_t event : {begin, end}) {
    if (is_captured(event)) return remember(cudaErrorCapturedEvent);
    if (!timed(event) || event->state->asked == 0) return remember(cudaErrorInvalidResourceHandle);
  }
  for (const cudaEvent_t event : {begin, end})
    if (!emulated::reached(*event->state, event->state->asked)) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(end->state->milliseconds - begin->state->milliseconds);
  return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  if ((event->flags & cudaEventInterprocess) == 0) return remember(cudaErrorInvalidResourceHandle);
  static_assert(sizeof(event->name) <= sizeof(*handle));
  *handle = {};
  std::memcpy(handle, &event->name, sizeof(event->name));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  emulated::MemoryName name;
  std::memcpy(&name, &handle, sizeof(name));
  if (name.process == getpid()) return remember(cudaErrorDeviceUninitialized);
  void* const memory = emulated::open_shared(name);
  if (memory == nullptr) return remember(cudaErrorMapBufferObjectFailed);
  std::shared_ptr<EventState> state(static_cast<EventState*>(memory),
                                    [name](EventState* old) { emulated::unmap_shared(old, name, false); });
  *event = new CUevent_st{std::move(state), name, cudaEventDisableTiming | cudaEventInterprocess,
                          emulated::current_device()};
  return cudaSuccess;
}
