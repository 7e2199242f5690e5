#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/verb.h"
#include "collectives/wire_type.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/world.h"
#include "kernels/base/split.h"
#include "kernels/base/trace.h"
#include "kernels/device.h"

namespace annulus {

// Describes an all-reduce. `description` and `common` may change in allocate(); the other members are constant.
struct AllReduceInfo {
  // For the user, in one line: the algorithm and the reason for choosing it.
  std::string description;

  // The addition order, and the precision that values are rounded to on the way. Equal texts mean equal bits if ranks
  // are placed equally and if both runs' arrays are in allocate()'s memory, or neither's. MPI_Allreduce and NCCL choose
  // an algorithm by themselves, so for them equal bits also require equal library versions.
  std::string order;
  // Arrays up to this size, in bytes, are added in a different order than larger arrays, because that was measured to
  // be faster. None if there is a single order.
  std::optional<std::size_t> crossover = {};
  // The messages' number format, unless an operation is exact; fp32 also if it sends none.
  WireType wire = WireType::fp32;
  // False if the arrays are left unchanged, to measure the cost of communication; not for training.
  bool reduces = true;
  bool all_verbs = false;    // whether reduce-scatter, all-gather and exact operations can be enqueued
  bool takes_marks = false;  // whether Request::since can be set
  bool common = false;       // whether ranks share an array in Memory::common; else it is like Memory::own
};

// All-reduces (sums) float32 arrays over all ranks, in place, while the caller goes on computing. This is the interface
// between a training step and the all-reduce algorithm.
//
// The arrays are in the device's memory. The all-reduce sees all work that was queued on the device's lane before
// enqueue(). Work queued after join() sees the reduced array. On a GPU, neither need be complete when the call returns.
//
// REQUIRES: every rank enqueues arrays of the same sizes in the same order. The result is bit-identical on all ranks.
// The all-reduce owns an array from enqueue() until wait() or join() has returned for it.
class AllReduce {
 public:
  using Ticket = std::uint64_t;
  enum class Next { compute, wait };  // what the caller does after enqueue()

  // Replaces the bucket's number for an all-reduce in the middle of a pass, which the computation waits for, as batch
  // norm may.
  static constexpr std::size_t kWithinPass = static_cast<std::size_t>(-1);

  struct Request {
    Verb verb = Verb::all_reduce;
    bool exact = false;  // see Collective
    Next next = Next::compute;
    std::size_t bucket = 0;  // names the all-reduce in reports and timelines
    // The lane's mark since which no work on the lane accesses the array; none: the time of enqueue(). REQUIRES:
    // info().takes_marks.
    std::optional<Mark> since{};
  };

  explicit AllReduce(AllReduceInfo info,
                     std::shared_ptr<AllReduceContext> context = std::make_shared<AllReduceContext>(0))
      : info_(std::move(info)), context_(std::move(context)) {}
  virtual ~AllReduce() = default;

  const AllReduceInfo& info() const { return info_; }
  const std::shared_ptr<AllReduceContext>& context() const { return context_; }
  const AllReduceProgress& progress() const { return context_->progress; }  // any thread may read it

  // Records each all-reduce and each stage as spans of this lane; null: no recording. Call before the first enqueue().
  void record_to(TraceLane* lane) { context_->lane = lane; }

  // Returns zeroed memory for arrays that are reduced often; arrays in it need the fewest copies. An array must be at
  // the same offset on every rank. The memory lives as long as this object. If ranks have an array in common, an
  // all-gather copies nothing, and only waits until every rank has written. Collective; call before the first
  // enqueue().
  virtual DeviceView allocate(std::size_t bytes, Memory memory = Memory::own) = 0;

  // With shards, a rank adds an array per subtree that it has (collectives/shard_tree.h). Returns the memory for
  // subtree `number`; for the last or only subtree it is `values`, which receives the sum. REQUIRES: `values` is in
  // allocate()'s memory.
  virtual DeviceView addend(DeviceView values, std::size_t /*number*/) { return values; }

  // Returns immediately. REQUIRES for a reduce-scatter, an all-gather and exact operations: info().all_verbs; for the
  // first two also: `values` is in allocate()'s memory.
  virtual Ticket enqueue(DeviceView values, const Request& request) = 0;
  Ticket enqueue(DeviceView values) { return enqueue(values, Request{}); }

  // Returns this rank's chunk of `count` floats. REQUIRES: info().all_verbs.
  virtual Range chunk(std::size_t count) const;

  virtual void wait(Ticket ticket) = 0;               // returns when this all-reduce and all before it are complete;
                                                      // throws Error if any failed
  virtual void join(Ticket ticket) { wait(ticket); }  // the device's lane waits, this thread only if it must

  // Ends all pending all-reduces, wherever they are. Called while an error propagates, before memory that they may
  // still use is freed (see OnError). No other call may follow.
  virtual void abandon() noexcept {}

  // Continues with the surviving ranks, `world`, after ranks were lost and an all-reduce was interrupted
  // (World::interrupt). Allocated memory stays as it was; earlier tickets are invalid. Supported only by the all-reduce
  // of make_shard_all_reduce(). Collective. Throws Error.
  virtual void continue_in(const World& /*world*/) {}

 protected:
  void expect_possible(const Request& request) const;  // throws Error
  void update(AllReduceInfo info) { info_ = std::move(info); }

 private:
  AllReduceInfo info_;
  const std::shared_ptr<AllReduceContext> context_;
};

// Names an all-reduce in timelines.
struct AllReduceName {
  std::string_view text;
  std::int64_t number;
};
inline AllReduceName name_of(std::size_t bucket) {
  if (bucket == AllReduce::kWithinPass) return {"all-reduce within a pass", TraceLane::kNone};
  return {"all-reduce of bucket", static_cast<std::int64_t>(bucket + 1)};
}

// Creates the all-reduce `algorithm`:
// - "ring": ours, in shared memory if all ranks are on one node, else over messages
// - "message-ring": ours, always over messages
// - "doubling": ours, over messages, for small arrays
// - "shm": ours, in the memory that the ranks of a node share
// - "hierarchical": shm on each node, messages between nodes
// - "mpi": MPI_Allreduce
// - "none": leaves the arrays unchanged, to measure the cost of communication
// - "auto": the best algorithm that the ranks' placement allows
// With a single rank, every algorithm does nothing.
//
// On GPUs "ring" uses peer access within a node, and messages between nodes; "direct" pulls from all the node's GPUs at
// the same time; "nccl" is NCCL's all-reduce; "hierarchical" all-reduces chunks by NCCL between nodes, if each rank has
// a separate GPU; the other names are the host's algorithms, staged through host memory; "auto" is the faster of "ring"
// and "direct" on a single node, else "nccl", if possible; the host's "auto" if not, or if ranks share a GPU.
//
// `wire`: the messages' number format. `crossover`: reuses an earlier run's crossover, to reproduce that run's bits,
// instead of measuring it; ignored by algorithms without a crossover. Collective over the world. Throws Error if the
// algorithm cannot be used here. The device must outlive the result.
std::unique_ptr<AllReduce> make_all_reduce(const std::string& algorithm, const World& world, Device& device,
                                           WireType wire = WireType::fp32, std::optional<std::size_t> crossover = {});

// Creates the all-reduce that sums in shard-tree order (collectives/shard_tree.h): the result's bits depend neither on
// the number of ranks nor on their placement. It uses shared memory on each node, and messages between nodes. `shards`
// 0: a shard per rank, also after ranks were lost. Arrays must be in allocate()'s memory. Collective over the world.
// Throws Error if there are fewer shards than ranks, or if the device is a GPU.
std::unique_ptr<AllReduce> make_shard_all_reduce(const World& world, Device& device, std::size_t shards);

// Creates an all-reduce among this node's ranks, in shared memory. Returns null if this rank is alone there, if
// the device is a GPU, or if there is too little shared memory. Collective over the world.
std::unique_ptr<AllReduce> make_node_all_reduce(const World& world, Device& device);

// Returns the names above.
const std::vector<std::string>& all_reduce_names();

// Returns a warning for the user if the requested wire format has no effect on this all-reduce; else empty.
std::string unused_wire(const AllReduce& all_reduce, WireType wire);

}  // namespace annulus
