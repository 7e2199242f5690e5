#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/gpu/emulator/cuda_runtime.h"
#include "tests/gpu/emulator/stream_races.h"

namespace emulated {

using Work = std::function<void()>;

}  // namespace emulated

// Work, or the record of an event.
struct CUgraphNode_st {
  emulated::Work work;
  cudaEvent_t recorded = nullptr;
};

namespace emulated {

// The content of a graph: the work of one stream, in order.
using Nodes = std::vector<CUgraphNode_st>;

struct Capture {
  std::uint64_t number;  // from 1, in order of their beginning
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool valid = true;
  Nodes nodes;
};

// Remembers an error for cudaGetLastError.
cudaError_t remember(cudaError_t error);

int current_device();

enum class Kind {
  work,
  wait,    // for another stream
  record,  // of an event: when it has happened, the command is no longer seen in the stream
};

// Puts work on a stream (null: the current device's default one), or into the graph that it is captured into.
cudaError_t enqueue(cudaStream_t stream, Work work, Kind kind = Kind::work);

// One of a GPU's queues, which streams share if there are more of them: commands begin in the order in which they were
// queued, whatever their stream. So a command that cannot begin yet, because its stream is busy, or which waits for
// another stream, holds up those behind it.
class HardwareQueue {
 public:
  std::uint64_t queue();  // returns the command's number
  void await_turn(std::uint64_t number);
  void begun(std::uint64_t number);  // the next one may begin

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t queued_ = 0, begun_ = 0;
};

// Requests a record of the event, and returns the work with which it happens.
Work request_record(cudaEvent_t event);

// Whether this thread may not make calls that could wait for a stream that is captured. Such a call makes the capture
// invalid.
bool unsafe_while_capturing();

// Whether a stream of the current device is captured, in any mode and by any thread. Then nobody may wait for the
// device, and a call that would makes the capture invalid.
bool captured_on_device();

// Waits until all streams of the current device are idle.
void synchronize_device();

}  // namespace emulated

struct CUstream_st {
  explicit CUstream_st(int device);
  ~CUstream_st();

  int device() const { return device_; }
  void push(emulated::Work work, emulated::Kind kind);
  void synchronize();
  bool idle();

  std::unique_ptr<emulated::Capture> capture;  // while there is one

 private:
  struct Command {
    emulated::Work work;
    emulated::Kind kind;
    std::uint64_t number;  // in the hardware's queue
    emulated::stream_races::Clock before;
  };

  void run();

  const int device_;
  emulated::HardwareQueue& hardware_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> queue_;           // its front is running
  emulated::stream_races::Clock done_;  // after the last command that is done
  bool closing_ = false;
  std::thread thread_;  // from the first work on
};

namespace emulated {

// The stream that a handle means: null is the current device's default one.
CUstream_st& resolve(cudaStream_t stream);

}  // namespace emulated
