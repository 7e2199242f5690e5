#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/wire_type.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/trace.h"

namespace annulus {

// One way to add arrays over all ranks. Blocks, and is used by one thread at a time: AllReduceWorker makes an AllReduce
// of it.
class AllReduceAlgorithm {
 public:
  virtual ~AllReduceAlgorithm() = default;

  // In place; every rank calls it with the same sizes in the same order. The same bits on every rank.
  virtual void sum(std::span<float> values) = 0;

  // See AllReduce.
  virtual std::string order() const = 0;
  virtual std::optional<std::size_t> crossover() const { return {}; }
  virtual WireType wire() const { return WireType::fp32; }

  // See AllReduce::allocate. Ordinary memory, where an algorithm has no better.
  virtual std::span<std::byte> allocate(std::size_t bytes) {
    const DeviceView memory = memory_.emplace_back(allocate_host(bytes)).view();
    return {memory.address, memory.bytes};
  }

  virtual std::uint64_t bytes_sent() const = 0;  // by this rank so far; 0 where the algorithm cannot tell

  // From now on what happens inside of a sum is spans of this lane; of none where it is null.
  virtual void record_to(TraceLane* lane) { lane_ = lane; }

 protected:
  TraceLane* lane_ = nullptr;

 private:
  std::vector<Buffer> memory_;
};

}  // namespace annulus
