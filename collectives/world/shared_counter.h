#pragma once

#include <atomic>
#include <cstdint>

#include "collectives/world/backoff.h"

namespace annulus {

// A counter in shared memory by which one process tells others how far it has come.
//
// Memory ordering: what the owner wrote before raise() is seen by whoever await() has let pass. raise() stores with
// release and await() loads with acquire, and that pairs them: a store-release may not overtake the writes before it,
// a load-acquire is not overtaken by the reads after it.
class alignas(64) SharedCounter {  // a cache line of its own: neighbours' signals must not slow each other down
 public:
  // Only its owner raises it, and never back. May wrap around: values are compared by their distance.
  void raise(std::uint32_t value);

  // Until the signal is at `value` or beyond. Looks for a while if that is urgent, yields the core for a while, then
  // sleeps until it is raised: ranks may outnumber cores, and the one that is waited for may be waiting for this core.
  // Throws Error if the wait is abandoned.
  void await(std::uint32_t value, const Backoff& backoff) const;

 private:
  bool reached(std::uint32_t value) const {
    return static_cast<std::int32_t>(value_.load(std::memory_order_acquire) - value) >= 0;
  }

  void sleep_until(std::uint32_t value, const Backoff& backoff) const;

  std::atomic<std::uint32_t> value_ = 0;
  mutable std::atomic<std::uint32_t> sleepers_ = 0;
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "it lies in memory of several processes");
};

}  // namespace annulus
