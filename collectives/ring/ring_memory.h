#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/host_memory.h"

namespace annulus {

// Where a ring's arrays lie, and who adds there. Used by one thread.
class RingMemory {
 public:
  virtual ~RingMemory() = default;

  // See AllReduceAlgorithm::allocate.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;

  // The first `count` of as many as were ever asked for, where operands of sums land.
  virtual std::span<float> scratch(std::size_t count) = 0;

  // Both are done when they return. `bytes` do not overlap `to`.
  virtual void add(std::span<float> to, std::span<const std::byte> bytes) = 0;
  virtual void copy(std::span<float> to, std::span<const std::byte> bytes) = 0;
};

class HostRingMemory final : public RingMemory {
 public:
  std::span<std::byte> allocate(std::size_t bytes) override;
  std::span<float> scratch(std::size_t count) override { return scratch_.first(count); }
  void add(std::span<float> to, std::span<const std::byte> bytes) override;
  void copy(std::span<float> to, std::span<const std::byte> bytes) override;

 private:
  HostArray<float> scratch_;
  std::vector<Buffer> memory_;
};

}  // namespace annulus
