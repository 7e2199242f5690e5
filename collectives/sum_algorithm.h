#pragma once

#include <cstdint>
#include <span>

namespace annulus {

// One way to add arrays over all ranks. Blocks, and is used by one thread: AllReduceWorker makes an AllReduce of it.
class SumAlgorithm {
 public:
  virtual ~SumAlgorithm() = default;

  // In place; every rank calls it with the same sizes in the same order. The same bits on every rank.
  virtual void sum(std::span<float> values) = 0;

  virtual std::uint64_t bytes_sent() const = 0;  // by this rank so far; 0 where the algorithm cannot tell
};

}  // namespace annulus
