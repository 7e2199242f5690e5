#pragma once

#include <array>
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
  // A short message from each rank to all, which costs nothing: it is in the counter's cache line.
  using Note = std::array<std::uint64_t, 3>;

  // `memory` must outlive the barrier. Collective.
  NodeBarrier(SharedMemory& memory, std::shared_ptr<AllReduceContext> context);

  // Returns when every rank has called this as often as this rank. `number` of `of` barriers in an all-reduce, from 1,
  // and `lane` (null: none): where to report that this rank waits. Throws Error if the wait is abandoned.
  void wait(std::size_t number, std::size_t of, TraceLane* lane, const Note& note = {});

  // Returns the rank's note in the last barrier. Valid until this rank's next wait().
  const Note& note(std::size_t rank) const { return slots_[rank]->notes[passed_ % 2]; }

 private:
  // A rank writes a note for barrier s + 2 after all ranks arrived at s + 1, thus after they read the note for s.
  struct Slot : SharedCounter {
    std::array<Note, 2> notes = {};  // used alternately
  };
  static_assert(sizeof(Slot) == sizeof(SharedCounter), "notes are in the counter's padding");

  const World& node_;
  std::shared_ptr<AllReduceContext> context_;
  std::vector<Slot*> slots_;  // for all ranks
  std::uint32_t passed_ = 0;
};

}  // namespace annulus
