#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/verb.h"
#include "collectives/wire_type.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/world.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/split.h"
#include "kernels/base/trace.h"

namespace annulus {

class SharedMemory;

// An all-reduce algorithm. Blocks, and is used by one thread at a time; AllReduceWorker turns it into an AllReduce.
class AllReduceAlgorithm {
 public:
  // See AllReduceInfo.
  struct Info {
    std::string order;
    std::optional<std::size_t> crossover = {};
    WireType wire = WireType::fp32;
    bool all_verbs = false;
  };

  AllReduceAlgorithm(Info info, std::shared_ptr<AllReduceContext> context)
      : info_(std::move(info)), context_(std::move(context)) {}
  virtual ~AllReduceAlgorithm() = default;

  const Info& info() const { return info_; }
  const std::shared_ptr<AllReduceContext>& context() const { return context_; }

  // Both depend on the memory that allocate() has found. The way, for the user, says where it sums; see AllReduceInfo
  // for `common`.
  virtual std::string way() const { return ""; }
  virtual bool common() const { return false; }

  // Runs in place. Arrays may be in a GPU's memory. REQUIRES: every rank calls it with the same sizes and operations in
  // the same order; for a reduce-scatter, an all-gather and exact operations info().all_verbs; for the first two also
  // that `values` is in allocate()'s memory. The result is bit-identical on all ranks.
  virtual void run(std::span<float> values, const Collective& collective) = 0;
  void all_reduce(std::span<float> values) { run(values, {}); }

  // See AllReduce.
  virtual Range chunk(std::size_t /*count*/) const { fail("this all-reduce has no chunks"); }

  // See AllReduce::allocate. The default is ordinary memory.
  virtual std::span<std::byte> allocate(std::size_t bytes, Memory /*memory*/ = Memory::own) {
    const DeviceView own = memory_.emplace_back(allocate_host(bytes)).view();
    return {own.address, own.bytes};
  }

  // Returns the memory in which a node's ranks reduce arrays in place; null if there is none.
  virtual SharedMemory* shared_memory() { return nullptr; }

  // See AllReduce::addend.
  virtual DeviceView addend(DeviceView values, std::size_t /*number*/) { return values; }

  virtual std::uint64_t bytes_sent() const = 0;  // by this rank so far; 0 if unknown

  // See AllReduce::continue_in.
  virtual void continue_in(const World& /*world*/) { fail("this all-reduce cannot go on after a rank was lost"); }

 protected:
  TraceLane* lane() const { return context_->lane; }  // for stage spans; null: no recording

 private:
  const Info info_;
  const std::shared_ptr<AllReduceContext> context_;
  std::vector<Buffer> memory_;
};

// Orders an algorithm's all-reduces among the work on a device's lane, for arrays that the lane reads and writes. Used
// by the thread that enqueues. The default is for host memory.
class LaneOrder {
 public:
  virtual ~LaneOrder() = default;

  // `number`: the all-reduce, counted from 1.
  // The next run() comes after all work queued on the lane.
  virtual void begin(DeviceView /*values*/, const Collective& /*collective*/) {}
  virtual void join(std::uint64_t /*number*/) {}                // later work on the lane comes after this all-reduce
  virtual bool done(std::uint64_t /*number*/) { return true; }  // REQUIRES: run() has returned for it
};

}  // namespace annulus
