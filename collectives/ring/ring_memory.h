#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/host_memory.h"

namespace annulus {

// The memory of a ring's arrays, and operations on it. Used by a single thread.
class RingMemory {
 public:
  virtual ~RingMemory() = default;

  // See AllReduceAlgorithm::allocate.
  virtual std::span<std::byte> allocate(std::size_t bytes) = 0;

  // Returns the scratch buffer's first `count` floats, for received operands.
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
