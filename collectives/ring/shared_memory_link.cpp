#include "collectives/ring/shared_memory_link.h"

#include <cstring>
#include <new>

#include "kernels/base/error.h"

namespace annulus {

SharedMemoryLink::SharedMemoryLink(std::shared_ptr<SharedMemory> memory, std::size_t in_flight,
                                   std::size_t largest_bytes, std::shared_ptr<AllReduceContext> context)
    : memory_(std::move(memory)), context_(std::move(context)), largest_bytes_(largest_bytes) {
  const World& node = memory_->node();
  rank_ = node.rank();
  next_ = (rank_ + 1) % node.size();
  previous_ = (rank_ + node.size() - 1) % node.size();
  if (in_flight >= kSlots) fail("{} exchanges in flight exceed this link's maximum of {}", in_flight, kSlots - 1);
  const auto own = memory_->allocate(sizeof(Board));
  new (own.data()) Board;
  boards_ = *memory_->find(own);
  copies_ = memory_->allocate(kSlots * largest_bytes);
  node.barrier();  // all boards are initialized
}

SharedMemoryLink::Board& SharedMemoryLink::board(int rank) const {
  return *reinterpret_cast<Board*>(memory_->at(rank, boards_));
}

void SharedMemoryLink::await(int rank, SharedCounter Board::*counter, std::uint32_t exchanges) const {
  context_->progress.await(memory_->node().rank_in_job(rank));
  (board(rank).*counter).await(exchanges, context_->backoff);
}

void SharedMemoryLink::post(std::span<const std::byte> to_next, std::span<std::byte> landing) {
  const std::uint32_t number = posted_++;
  const std::size_t slot = number % kSlots;
  sizes_[slot] = landing.size();
  // The slot is free when the next rank no longer needs the previous exchange in it.
  await(next_, &Board::taken, number + 1 - kSlots);
  auto place = memory_->find(to_next);
  if (!place) {
    const auto copy = copies_.subspan(slot * largest_bytes_, to_next.size());
    std::memcpy(copy.data(), to_next.data(), to_next.size());
    place = memory_->find(copy);
  }
  Board& own = board(rank_);
  own.places[slot] = *place;
  own.posted.raise(number + 1);
}

std::span<const std::byte> SharedMemoryLink::collect() {
  const std::uint32_t number = collected_++;
  board(rank_).taken.raise(number);  // with all exchanges before it
  await(previous_, &Board::posted, number + 1);
  return {memory_->at(previous_, board(previous_).places[number % kSlots]), sizes_[number % kSlots]};
}

void SharedMemoryLink::finish() {
  board(rank_).taken.raise(collected_);
  await(next_, &Board::taken, posted_);
}

}  // namespace annulus
