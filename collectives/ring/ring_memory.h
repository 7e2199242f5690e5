#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/host_memory.h"

namespace annulus {

// The memory that a ring's arrays are in, and the operations on it. Used by one thread.
class RingMemory {
 public:
  virtual ~RingMemory() = default;

  // See AllReduceAlgorithm::allocate.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;

  // Returns the first `count` floats of a scratch buffer for received operands.
  virtual std::span<float> scratch(std::size_t count) = 0;

  // Both are synchronous. REQUIRES: `bytes` does not overlap `to`.
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
