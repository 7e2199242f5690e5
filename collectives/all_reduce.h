#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "collectives/wire_type.h"
#include "collectives/world/all_reduce_progress.h"
#include "collectives/world/world.h"
#include "kernels/base/trace.h"
#include "kernels/device.h"

namespace annulus {

// Sums of float32 arrays over all ranks, in place, while the caller goes on computing. The seam between a training
// step and the algorithm that adds its gradients.
//
// The arrays lie in the device's memory. What the device's lane has been given before enqueue() is in the sum; what it
// is given after join() comes after the sum, though on a GPU neither the one nor the other need be done by then.
//
// Every rank enqueues the same sequence of sizes. The sum is the same to the bit on every rank. Until wait() or join()
// has returned for it, an array belongs to the all-reduce.
class AllReduce {
 public:
  using Ticket = std::uint64_t;
  enum class Next { compute, wait };  // what the caller does after enqueue()

  virtual ~AllReduce() = default;

  // Zeroed memory for arrays that will be summed often: sums of what lies there need the fewest copies. An array must
  // lie at the same place in it on every rank. It lives as long as this. Collective, before the first sum.
  virtual DeviceView allocate(std::size_t bytes) = 0;

  virtual std::string description() const = 0;  // one line for the user: the algorithm, and why this one

  // In which order numbers are added, and what they are rounded to on the way. The same text is the same bits, for the
  // same ranks in the same places and arrays that lie alike, in allocate()'s memory or not; of MPI_Allreduce and NCCL,
  // which choose by themselves, in the same versions.
  virtual std::string order() const = 0;
  // Where small arrays are added in another order than large ones, for that was measured to be faster: up to how many
  // bytes.
  virtual std::optional<std::size_t> crossover() const { return {}; }
  virtual WireType wire() const { return WireType::fp32; }  // what its messages are made of; fp32 also if it sends none

  // Instead of a bucket's number: a sum that computing waits for in the middle of a pass, as batch norm's may.
  static constexpr std::size_t kWithinPass = static_cast<std::size_t>(-1);
  // Returns at once. `bucket` is what reports and timelines call it.
  virtual Ticket enqueue(DeviceView values, Next next = Next::compute, std::size_t bucket = 0) = 0;
  virtual void wait(Ticket ticket) = 0;               // until that sum, and all before it, are complete; throws
                                                      // Error where one failed
  virtual void join(Ticket ticket) { wait(ticket); }  // the device's lane waits, this thread only if it must
  virtual std::uint64_t bytes_sent() const = 0;       // by this rank in completed sums; 0 where the algorithm
                                                      // cannot tell (MPI_Allreduce)

  // Sums that nobody will wait for end now, wherever they are: for the way out of an error, before memory that they may
  // still use goes away (see OnError). No other call may follow.
  virtual void abandon() noexcept {}

  // False where the arrays are left as they are, which is no training but a measure of what the sums cost.
  virtual bool sums() const { return true; }

  // Each sum, and what happens inside, becomes a span of this lane; of none where it is null. Before the first sum.
  virtual void record_to(TraceLane*) {}

  virtual const AllReduceProgress& activity() const = 0;  // what it is doing right now
};

// What timelines call a sum.
struct SumName {
  std::string_view text;
  std::int64_t number;
};
inline SumName name_of(std::size_t bucket) {
  if (bucket == AllReduce::kWithinPass) return {"sum within a pass", TraceLane::kNone};
  return {"sum of bucket", static_cast<std::int64_t>(bucket + 1)};
}

// `algorithm`: "ring" (ours; in shared memory where all ranks are on one node, else over messages), "message-ring"
// (over messages in any case), "doubling" (ours, over messages, for small arrays), "direct" (ours, in the memory that
// the ranks of a node share), "hierarchical" (direct on each node, messages between nodes), "mpi" (MPI_Allreduce),
// "none" (to measure what summing costs), or "auto", the best that the ranks' places allow. In a world of one there is
// nothing to add: every algorithm does nothing.
//
// On GPUs "ring" goes over the memory of a node's GPUs, and between nodes over messages; "nccl" is NCCL's; the others
// are the host's algorithms, which arrays go through the host's memory for; "auto" is "ring" where that can be.
//
// `wire`: what messages are made of. `crossover`: what crossover() of an earlier one said whose bits are wanted again,
// instead of measuring it; algorithms that have none do not look at it. Collective over the world. Throws Error where
// this one cannot be used here. The device must outlive it.
std::unique_ptr<AllReduce> make_all_reduce(const std::string& algorithm, const World& world, Device& device,
                                           WireType wire = WireType::fp32, std::optional<std::size_t> crossover = {});

// A warning for the user if the wire that was asked for makes no difference to this all-reduce; else empty.
std::string unused_wire(const AllReduce& all_reduce, WireType wire);

}  // namespace annulus
