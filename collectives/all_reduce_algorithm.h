#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/wire_type.h"
#include "collectives/world/world.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/split.h"
#include "kernels/base/trace.h"

namespace annulus {

// An all-reduce algorithm. Blocks, and is used by one thread at a time; AllReduceWorker turns it into an AllReduce.
class AllReduceAlgorithm {
 public:
  // See AllReduceInfo.
  struct Info {
    std::string order;
    std::optional<std::size_t> crossover = {};
    WireType wire = WireType::fp32;
    bool halves = false;
  };

  explicit AllReduceAlgorithm(Info info) : info_(std::move(info)) {}
  virtual ~AllReduceAlgorithm() = default;

  const Info& info() const { return info_; }

  // Where it sums, if this depends on the memory that allocate() finds: for the user.
  virtual std::string way() const { return ""; }

  // In place. Arrays may be in the memory of a GPU. REQUIRES: every rank calls it with the same sizes in the same
  // order. The result is bit-identical on all ranks.
  virtual void all_reduce(std::span<float> values) = 0;

  // See AllReduce::enqueue_exact.
  virtual void all_reduce_exact(std::span<float> values) { all_reduce(values); }

  // See AllReduce. REQUIRES: info().halves, and `values` is in allocate()'s memory.
  virtual void reduce_scatter(std::span<float> /*values*/) { fail("this all-reduce has no reduce-scatter"); }
  virtual void all_gather(std::span<float> /*values*/) { fail("this all-reduce has no all-gather"); }
  virtual Range chunk(std::size_t /*count*/) const { fail("this all-reduce has no chunks"); }

  // See AllReduce::allocate. The default is ordinary memory.
  virtual std::span<std::byte> allocate(std::size_t bytes) {
    const DeviceView memory = memory_.emplace_back(allocate_host(bytes)).view();
    return {memory.address, memory.bytes};
  }

  // See AllReduce.
  virtual std::span<std::byte> allocate_common(std::size_t bytes) { return allocate(bytes); }
  virtual bool in_common(const void* /*address*/) const { return false; }

  // See AllReduce::addend.
  virtual DeviceView addend(DeviceView values, std::size_t /*number*/) { return values; }

  // For arrays that a device's lane reads and writes; the defaults are for the host's memory. They are called by the
  // thread that enqueues. `number`: of the all-reduce, counted from 1.
  virtual void begin(DeviceView /*values*/) {}    // the next all_reduce() comes after all work queued on the lane
  virtual void join(std::uint64_t /*number*/) {}  // later work on the lane comes after this all-reduce
  virtual bool done(std::uint64_t /*number*/) { return true; }  // REQUIRES: all_reduce() has returned for it

  virtual std::uint64_t bytes_sent() const = 0;  // by this rank so far; 0 if unknown

  // See AllReduce::continue_in.
  virtual void continue_in(const World& /*world*/) { fail("this all-reduce cannot go on after a rank was lost"); }

  // Records the stages of each all-reduce as spans of this lane; null: no recording.
  virtual void record_to(TraceLane* lane) { lane_ = lane; }

 protected:
  TraceLane* lane_ = nullptr;

 private:
  const Info info_;
  std::vector<Buffer> memory_;
};

}  // namespace annulus
