#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/world/all_reduce_progress.h"
#include "kernels/base/tensor.h"

namespace annulus {

// One way to add arrays in GPU memory over all ranks, as work that is put on a stream: nothing here waits for a sum.
// AllReduceStream makes an AllReduce of it.
class StreamAlgorithm {
 public:
  virtual ~StreamAlgorithm() = default;  // abandons what is on the stream

  // Ends what is on the stream in seconds, also where other ranks never come; then those learn of it. Does not return
  // before that: where the stream cannot be ended, the process is. No other call may follow.
  virtual void abandon() noexcept = 0;

  // In place; every rank puts the same sizes in the same order. The same bits on every rank.
  virtual void put(DeviceView values) = 0;

  // See AllReduce::allocate.
  virtual DeviceView allocate(std::size_t bytes) = 0;

  virtual std::uint64_t bytes_to_send(DeviceView values) const = 0;  // for a sum; 0 where the algorithm cannot tell

  // Throws Error where another rank has left sums unfinished, which are then no sums.
  virtual void expect_all_there() = 0;

  // Where the stream stands.
  struct Place {
    AllReduceProgress::Step step;
    int peer = AllReduceProgress::kNobody;  // the rank of the job that it waits for
    bool operator==(const Place&) const = default;
  };
  virtual Place look() { return {}; }
};

}  // namespace annulus
