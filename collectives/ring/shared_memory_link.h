#pragma once

#include <array>
#include <memory>
#include <vector>

#include "collectives/ring/ring_link.h"
#include "collectives/world/backoff.h"
#include "collectives/world/shared_counter.h"
#include "collectives/world/shared_memory.h"

namespace annulus {

// The ring's wire between ranks of one node: nothing is sent. A rank tells the next one where its bytes lie, and that
// one adds or copies them from there. Arrays that do not lie in shared memory are copied there first, an exchange at a
// time.
//
// Why it is safe that a rank goes on before the next one has looked: within a sum it overwrites a place that it sent
// only with what has come round the ring since, and that cannot have come without the next rank having added what was
// there. At the end of a sum nothing vouches for that any longer: finish() waits.
class SharedMemoryLink final : public RingLink {
 public:
  // `in_flight`: exchanges that will be under way at once, of at most `largest_bytes`. Collective over the node.
  SharedMemoryLink(std::shared_ptr<SharedMemory> memory, std::size_t in_flight, std::size_t largest_bytes,
                   std::shared_ptr<Backoff> backoff);

  void post(std::span<const std::byte> to_next, std::span<std::byte> landing) override;
  std::span<const std::byte> collect() override;
  void finish() override;
  std::span<std::byte> allocate(std::size_t bytes) override { return memory_->allocate(bytes); }

 private:
  static constexpr std::uint32_t kSlots = 16;  // exchanges that one rank may be ahead of the next

  // What every rank shows its neighbours. Counts of exchanges, since the beginning.
  struct Board {
    SharedCounter posted;  // `places` are there
    SharedCounter taken;   // of the previous rank's bytes no more is needed
    std::array<SharedMemory::Place, kSlots> places;
  };

  Board& board(int rank) const;
  void await(int rank, SharedCounter Board::*signal, std::uint32_t exchanges) const;

  std::shared_ptr<SharedMemory> memory_;
  std::shared_ptr<Backoff> backoff_;
  std::size_t largest_bytes_;
  int rank_, next_, previous_;
  SharedMemory::Place boards_;
  std::span<std::byte> copies_;              // kSlots of them, for bytes that lie elsewhere
  std::array<std::size_t, kSlots> sizes_{};  // of what is awaited
  std::uint32_t posted_ = 0, collected_ = 0;
};

}  // namespace annulus
