#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/world/all_reduce_context.h"
#include "collectives/world/shared_counter.h"
#include "collectives/world/shared_memory.h"
#include "kernels/base/trace.h"

namespace annulus {

// A barrier for a node's ranks: each rank raises a counter in shared memory. Writes before the barrier are visible to
// all ranks after it.
class NodeBarrier {
 public:
  // `memory` must outlive the barrier. Collective.
  NodeBarrier(SharedMemory& memory, std::shared_ptr<AllReduceContext> context);

  // Returns when every rank has called this as often as this rank. `number` of `of` barriers in an all-reduce, from 1,
  // and `lane` (null: none): where to report that this rank waits. Throws Error if the wait is abandoned.
  void wait(std::size_t number, std::size_t of, TraceLane* lane);

 private:
  const World& node_;
  std::shared_ptr<AllReduceContext> context_;
  std::vector<SharedCounter*> counters_;  // for all ranks
  std::uint32_t passed_ = 0;
};

}  // namespace annulus
