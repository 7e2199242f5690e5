#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/verb.h"
#include "collectives/world/all_reduce_progress.h"
#include "kernels/base/split.h"
#include "kernels/base/tensor.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus {

// An all-reduce algorithm for arrays in GPU memory that queues all work on a stream; nothing here waits for completion.
// AllReduceStream turns it into an AllReduce.
class StreamAlgorithm {
 public:
  explicit StreamAlgorithm(cudaStream_t stream) : stream_(stream) {}
  virtual ~StreamAlgorithm() = default;  // abandons what is on the stream

  // Ends the stream's work within seconds, even if other ranks never come; these then get an error. Returns only after
  // that; if the stream cannot be ended, the process exits. No other call may follow.
  void abandon() noexcept;
  // Ends the stream's waits for other ranks, which get an error. Called repeatedly until the stream's work is done.
  virtual void end_waits() noexcept = 0;

  // Queues an operation in place. REQUIRES: every rank puts the same sizes and verbs in the same order; for a
  // reduce-scatter or an all-gather, `values` is in allocate()'s memory. The result is bit-identical on all ranks.
  virtual void put(DeviceView values, Verb verb) = 0;
  virtual Range chunk(std::size_t count) const = 0;  // see AllReduce

  // See AllReduce::allocate.
  virtual DeviceView allocate(std::size_t bytes) = 0;

  virtual std::uint64_t bytes_to_send(DeviceView values, Verb verb) const = 0;  // 0 if unknown

  // Throws Error if another rank has left all-reduces unfinished, because their results are invalid.
  virtual void expect_all_there() = 0;

  // The stream's current position.
  struct Place {
    AllReduceProgress::Step step;
    int peer = AllReduceProgress::kNobody;  // the rank in the job that it waits for
    bool operator==(const Place&) const = default;
  };
  virtual Place snapshot() { return {}; }

 protected:
  cudaStream_t stream() const { return stream_; }
  // Destructors call this: it abandons what is on the stream if an exception propagates, because other ranks may never
  // come, or if there are all-reduces that nobody has waited for. Returns whether it did.
  bool leave() noexcept;

 private:
  const cudaStream_t stream_;
};

}  // namespace annulus
