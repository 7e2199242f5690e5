#pragma once

#include <atomic>
#include <cstdint>

#include "collectives/world/backoff.h"

namespace annulus {

// A counter in shared memory by which a process announces progress to other processes.
//
// Memory ordering: the owner's writes before raise() are visible to a thread after await() has returned there. raise()
// stores with release and await() loads with acquire, which pairs them: a store-release is not reordered before the
// writes that precede it, a load-acquire is not reordered after the reads that follow it.
class alignas(64) SharedCounter {  // a whole cache line, against false sharing
 public:
  // Only the owner may call this; the value never decreases. It may wrap around: values are compared by their distance.
  void raise(std::uint32_t value);

  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // Waits until the counter is at `value` or beyond. Polls for a while if the backoff is urgent, then yields the core
  // for a while, then sleeps until the counter is raised: ranks may outnumber cores, and the awaited rank may be
  // waiting for this core. Throws Error if the wait is abandoned. `lost`: also ends the wait, if it becomes true.
  // Returns whether the counter is there.
  bool await(std::uint32_t value, const Backoff& backoff, const std::atomic<bool>* lost = nullptr) const;

 private:
  bool reached(std::uint32_t value) const { return static_cast<std::int32_t>(this->value() - value) >= 0; }

  bool sleep_until(std::uint32_t value, const Backoff& backoff, const std::atomic<bool>* lost) const;

  std::atomic<std::uint32_t> value_ = 0;
  mutable std::atomic<std::uint32_t> sleepers_ = 0;
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "it lies in memory of several processes");
};

}  // namespace annulus
