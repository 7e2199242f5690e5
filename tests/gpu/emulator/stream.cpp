#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"

namespace emulated {
namespace {

// CUDA has 8 for a process by default, and at most 32. The streams of a device take them in turns.
HardwareQueue& next_hardware_queue(int device) {
  struct Queues {
    std::vector<std::unique_ptr<HardwareQueue>> all;
    std::size_t taken = 0;
  };
  static std::mutex mutex;
  static auto* const devices = new std::map<int, Queues>;  // never destroyed, like the streams
  const std::lock_guard lock(mutex);
  Queues& queues = (*devices)[device];
  if (queues.all.empty()) {
    const char* const text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    queues.all.resize(static_cast<std::size_t>(std::clamp(text == nullptr ? 8 : std::atoi(text), 1, 32)));
    for (auto& queue : queues.all) queue = std::make_unique<HardwareQueue>();
  }
  return *queues.all[queues.taken++ % queues.all.size()];
}

}  // namespace

std::uint64_t HardwareQueue::queue() {
  const std::lock_guard lock(mutex_);
  return queued_++;
}

void HardwareQueue::await_turn(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return begun_ == number; });
}

void HardwareQueue::begun(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  begun_ = number + 1;
  changed_.notify_all();
}

}  // namespace emulated

CUstream_st::CUstream_st(int device) : device_(device), hardware_(emulated::next_hardware_queue(device)) {}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// CUDA's driver blocks too when a stream's queue is full.
void CUstream_st::push(emulated::Work work, emulated::Kind kind) {
  constexpr std::size_t kMostQueued = 1024;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.size() < kMostQueued; });
  if (!thread_.joinable()) thread_ = std::thread(&CUstream_st::run, this);
  queue_.push_back({std::move(work), kind, hardware_.queue(), emulated::stream_races::release()});
  changed_.notify_all();
}

void CUstream_st::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty(); });
  emulated::stream_races::acquire(done_);
}

bool CUstream_st::idle() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) emulated::stream_races::acquire(done_);
  return queue_.empty();
}

namespace emulated {
namespace {

// Streams of a GPU progress independently. Delays each piece of work by up to ANNULUS_EMULATED_DELAY microseconds, with
// different random numbers in every process and thread, to test different orders.
void delay() {
  static const char* const text = std::getenv("ANNULUS_EMULATED_DELAY");
  static const unsigned most = text == nullptr ? 0 : static_cast<unsigned>(std::atoi(text));
  if (most == 0) return;
  static thread_local std::minstd_rand draw(std::random_device{}());
  const unsigned drawn = static_cast<unsigned>(draw()) % (4 * most);
  if (drawn < most) std::this_thread::sleep_for(std::chrono::microseconds(drawn));  // one of four
}

}  // namespace
}  // namespace emulated

void CUstream_st::run() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    lock.unlock();
    emulated::delay();
    const Command& command = queue_.front();  // other threads only append
    hardware_.await_turn(command.number);
    if (command.kind != emulated::Kind::wait) hardware_.begun(command.number);
    if (command.kind == emulated::Kind::record) lock.lock();
    emulated::report_illegal_accesses();
    emulated::stream_races::acquire(command.before);
    command.work();
    if (command.kind == emulated::Kind::wait) hardware_.begun(command.number);
    if (command.kind != emulated::Kind::record) lock.lock();
    queue_.pop_front();
    done_ = emulated::stream_races::release();
    changed_.notify_all();
  }
}

namespace emulated {
namespace {

// All streams; never destroyed, because other threads may still use them while the process exits.
struct Streams {
  std::mutex mutex;
  std::map<CUstream_st*, std::shared_ptr<CUstream_st>> all;  // shared with threads that are waiting for one
  std::vector<CUstream_st*> defaults;
  std::uint64_t captures = 0;
};

Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}

CUstream_st& default_stream(int device) {
  Streams& known = streams();
  const std::lock_guard lock(known.mutex);
  for (int i = static_cast<int>(known.defaults.size()); i <= device; ++i) {
    known.defaults.push_back(new CUstream_st(i));
    known.all[known.defaults.back()].reset(known.defaults.back());
  }
  return *known.defaults[static_cast<std::size_t>(device)];
}

bool exists(cudaStream_t stream) {
  const std::lock_guard lock(streams().mutex);
  return streams().all.contains(stream);
}

bool forbids_here(const CUstream_st& stream) {
  if (!stream.capture || stream.capture->mode == cudaStreamCaptureModeRelaxed) return false;
  return stream.capture->mode == cudaStreamCaptureModeGlobal || stream.capture->thread == std::this_thread::get_id();
}

}  // namespace

CUstream_st& resolve(cudaStream_t stream) {
  if (stream == nullptr) return default_stream(current_device());
  if (!exists(stream)) abort_emulation("a stream is used that does not exist (any more)");
  return *stream;
}

cudaError_t enqueue(cudaStream_t stream, Work work, Kind kind) {
  CUstream_st& target = resolve(stream);
  if (stream == nullptr && unsafe_while_capturing()) return remember(cudaErrorStreamCaptureImplicit);
  if (!target.capture) {
    target.push(std::move(work), kind);
    return cudaSuccess;
  }
  if (!target.capture->valid) return remember(cudaErrorStreamCaptureInvalidated);
  target.capture->nodes.push_back({std::move(work)});
  return cudaSuccess;
}

bool unsafe_while_capturing() {
  const std::lock_guard lock(streams().mutex);
  bool forbidden = false;
  for (const auto& [handle, stream] : streams().all) {
    if (!forbids_here(*stream)) continue;
    stream->capture->valid = false;
    forbidden = true;
  }
  return forbidden;
}

bool captured_on_device() {
  const std::lock_guard lock(streams().mutex);
  bool captured = false;
  for (const auto& [handle, stream] : streams().all) {
    if (!stream->capture || stream->device() != current_device()) continue;
    stream->capture->valid = false;
    captured = true;
  }
  return captured;
}

void synchronize_device() {
  std::vector<std::shared_ptr<CUstream_st>> all;
  {
    const std::lock_guard lock(streams().mutex);
    for (const auto& [handle, stream] : streams().all)
      if (stream->device() == current_device()) all.push_back(stream);
  }
  for (const auto& stream : all) stream->synchronize();
}

void abort_emulation(const char* why) {
  std::fprintf(stderr, "emulated GPU: %s\n", why);
  std::abort();
}

}  // namespace emulated

using emulated::remember;
using emulated::resolve;
using emulated::streams;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const auto created = std::make_shared<CUstream_st>(emulated::current_device());
  *stream = created.get();
  const std::lock_guard lock(streams().mutex);
  streams().all[*stream] = created;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

// CUDA returns immediately and lets the stream finish; the emulator waits for it.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::shared_ptr<CUstream_st> last;
  const std::lock_guard lock(streams().mutex);
  const auto found = streams().all.find(stream);
  if (found == streams().all.end()) return remember(cudaErrorInvalidResourceHandle);
  last = std::move(found->second);  // ends after the lock is released
  streams().all.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUstream_st& target = resolve(stream);
  if (target.capture || (stream == nullptr && emulated::unsafe_while_capturing())) {
    if (target.capture) target.capture->valid = false;
    return remember(cudaErrorStreamCaptureUnsupported);
  }
  target.synchronize();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CUstream_st& target = resolve(stream);
  if (target.capture) {
    target.capture->valid = false;
    return remember(cudaErrorStreamCaptureUnsupported);
  }
  return target.idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return emulated::enqueue(stream, [=] { function(data); });
}

cudaError_t cudaDeviceSynchronize() {
  if (emulated::captured_on_device()) return remember(cudaErrorStreamCaptureUnsupported);
  emulated::synchronize_device();
  return cudaSuccess;
}

struct CUgraph_st {
  std::shared_ptr<const emulated::Nodes> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const emulated::Nodes> nodes;
  std::vector<cudaEvent_t> recorded;  // by each node; null if none
};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return remember(cudaErrorStreamCaptureUnsupported);  // the legacy stream cannot be captured
  CUstream_st& target = resolve(stream);
  const std::lock_guard lock(streams().mutex);
  if (target.capture) return remember(cudaErrorIllegalState);
  target.capture = std::make_unique<emulated::Capture>(++streams().captures, mode, std::this_thread::get_id());
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  CUstream_st& target = resolve(stream);
  const std::lock_guard lock(streams().mutex);
  *graph = nullptr;
  if (!target.capture) return remember(cudaErrorIllegalState);
  if (target.capture->mode != cudaStreamCaptureModeRelaxed && target.capture->thread != std::this_thread::get_id())
    return remember(cudaErrorStreamCaptureWrongThread);
  const auto capture = std::move(target.capture);
  if (!capture->valid) return remember(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::make_shared<const emulated::Nodes>(std::move(capture->nodes))};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const CUstream_st& target = resolve(stream);
  *status = !target.capture         ? cudaStreamCaptureStatusNone
            : target.capture->valid ? cudaStreamCaptureStatusActive
                                    : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  *count = graph->nodes->size();
  if (nodes == nullptr) return cudaSuccess;
  for (const CUgraphNode_st& node : *graph->nodes) *nodes++ = const_cast<cudaGraphNode_t>(&node);
  return cudaSuccess;
}

// Nodes that record no event are reported as kernels.
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = node->recorded != nullptr ? cudaGraphNodeTypeEventRecord : cudaGraphNodeTypeKernel;
  return cudaSuccess;
}

cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  if (node->recorded == nullptr) return remember(cudaErrorInvalidValue);
  *event = node->recorded;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->nodes, {}};
  for (const CUgraphNode_st& node : *graph->nodes) (*executable)->recorded.push_back(node.recorded);
  return cudaSuccess;
}

cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t executable, cudaGraphNode_t node, cudaEvent_t event) {
  const std::ptrdiff_t number = node - executable->nodes->data();
  if (number < 0 || number >= std::ssize(*executable->nodes) || node->recorded == nullptr)
    return remember(cudaErrorInvalidValue);
  executable->recorded[static_cast<std::size_t>(number)] = event;
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return cudaSuccess;
}

namespace {

std::atomic<std::size_t> launched_graphs;

}  // namespace

std::size_t emulated::graph_launches() {
  return launched_graphs;
}

// Records of events are requested now: a stream that waits for an event from now on waits for this launch.
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  ++launched_graphs;
  std::vector<emulated::Work> records;
  for (const cudaEvent_t event : executable->recorded)
    if (event != nullptr) records.push_back(emulated::request_record(event));
  return emulated::enqueue(stream, [nodes = executable->nodes, records = std::move(records)] {
    auto record = records.begin();
    for (const CUgraphNode_st& node : *nodes) node.recorded != nullptr ? (*record++)() : node.work();
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
