#pragma once

#include <array>
#include <memory>
#include <vector>

#include "collectives/ring/ring_link.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/shared_counter.h"
#include "collectives/world/shared_memory.h"

namespace annulus {

// A RingLink between ranks on a node that sends nothing: a rank publishes where its bytes are, and the next rank adds
// or copies them from there. Arrays outside shared memory are first copied there, exchange by exchange.
//
// Why a rank may continue before the next rank has read the bytes: within an all-reduce it overwrites a place that it
// sent only with data that has come round the ring since, and which thus cannot have come before the next rank added
// the old data. At the end of an all-reduce this no longer holds, so finish() waits.
class SharedMemoryLink final : public RingLink {
 public:
  // `in_flight`: maximum number of exchanges in flight, each with at most `largest_bytes`. Collective over the node.
  SharedMemoryLink(std::shared_ptr<SharedMemory> memory, std::size_t in_flight, std::size_t largest_bytes,
                   std::shared_ptr<AllReduceContext> context);

  void post(std::span<const std::byte> to_next, std::span<std::byte> landing) override;
  std::span<const std::byte> collect() override;
  void finish() override;
  std::span<std::byte> allocate(std::size_t bytes) override { return memory_->allocate(bytes); }

 private:
  static constexpr std::uint32_t kSlots = 16;  // maximum number of exchanges that a rank is ahead of the next rank

  // The state that every rank publishes to its neighbours. Counters count exchanges, since the beginning.
  struct Board {
    SharedCounter posted;  // their `places` are valid
    SharedCounter taken;   // their bytes, the previous rank's, are no longer needed
    std::array<SharedMemory::Place, kSlots> places;
  };

  Board& board(int rank) const;
  void await(int rank, SharedCounter Board::*counter, std::uint32_t exchanges) const;

  std::shared_ptr<SharedMemory> memory_;
  std::shared_ptr<AllReduceContext> context_;
  std::size_t largest_bytes_;
  int rank_, next_, previous_;
  SharedMemory::Place boards_;
  std::span<std::byte> copies_;              // kSlots copies, for bytes outside shared memory
  std::array<std::size_t, kSlots> sizes_{};  // in bytes, for the awaited exchanges
  std::uint32_t posted_ = 0, collected_ = 0;
};

}  // namespace annulus
