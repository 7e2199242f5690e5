#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/world/all_reduce_progress.h"
#include "kernels/base/split.h"
#include "kernels/base/tensor.h"

namespace annulus {

// An all-reduce algorithm for arrays in GPU memory that queues its work on a stream; nothing here waits for completion.
// AllReduceStream turns it into an AllReduce.
class StreamAlgorithm {
 public:
  virtual ~StreamAlgorithm() = default;  // abandons what is on the stream

  // Ends the stream's work within seconds, even if other ranks never come; these then get an error. Returns only after
  // that; if the stream cannot be ended, the process exits. No other call may follow.
  virtual void abandon() noexcept = 0;

  // The verbs of AllReduce.
  enum class Operation { all_reduce, reduce_scatter, all_gather };

  // In place. REQUIRES: every rank puts the same sizes and operations in the same order; halves of an all-reduce are of
  // arrays in allocate()'s memory. The result is bit-identical on all ranks.
  virtual void put(DeviceView values, Operation operation) = 0;
  virtual Range chunk(std::size_t count) const = 0;  // see AllReduce

  // See AllReduce::allocate.
  virtual DeviceView allocate(std::size_t bytes) = 0;

  virtual std::uint64_t bytes_to_send(DeviceView values, Operation operation) const = 0;  // 0 if unknown

  // Throws Error if another rank has left all-reduces unfinished, whose results are then invalid.
  virtual void expect_all_there() = 0;

  // The stream's current position.
  struct Place {
    AllReduceProgress::Step step;
    int peer = AllReduceProgress::kNobody;  // the rank in the job that it waits for
    bool operator==(const Place&) const = default;
  };
  virtual Place snapshot() { return {}; }
};

}  // namespace annulus
