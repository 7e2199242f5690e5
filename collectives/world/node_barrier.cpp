#include "collectives/world/node_barrier.h"

#include <new>
#include <utility>

namespace annulus {

NodeBarrier::NodeBarrier(SharedMemory& memory, std::shared_ptr<AllReduceContext> context)
    : node_(memory.node()), context_(std::move(context)) {
  const auto own = memory.allocate(sizeof(Slot));
  new (own.data()) Slot;
  for (std::byte* address : memory.everywhere(own)) slots_.push_back(reinterpret_cast<Slot*>(address));
  node_.barrier();  // all counters are initialized
}

void NodeBarrier::wait(std::size_t number, std::size_t of, TraceLane* lane, const Note& note) {
  const TraceSpan span(lane, "wait for ranks");
  context_->progress.enter({"barrier", number, of});
  const auto own = static_cast<std::size_t>(node_.rank());
  ++passed_;
  slots_[own]->notes[passed_ % 2] = note;
  slots_[own]->raise(passed_);
  for (std::size_t rank = 0; rank < slots_.size(); ++rank)
    if (rank != own) {
      context_->progress.await(node_.rank_in_job(static_cast<int>(rank)));
      slots_[rank]->await(passed_, context_->backoff);
    }
}

}  // namespace annulus
