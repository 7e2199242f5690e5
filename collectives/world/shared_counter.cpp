#include "collectives/world/shared_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace annulus {
namespace {

// The interval at which a sleeper checks whether the wait was abandoned or the owner lost.
constexpr timespec kLongestSleep{.tv_sec = 0, .tv_nsec = 20'000'000};

long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void SharedCounter::raise(std::uint32_t value) {
  value_.store(value, std::memory_order_release);
  // Either this thread sees the sleeper, or the sleeper sees the value: both sides put a full fence between their write
  // and their read (Dekker).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_relaxed) > 0) futex(value_, FUTEX_WAKE, INT_MAX, nullptr);
}

bool SharedCounter::await(std::uint32_t value, const Backoff& backoff, const std::atomic<bool>* lost) const {
  for (int polls = 0; !reached(value);)
    if (!backoff.rest_before_sleep(polls++)) return sleep_until(value, backoff, lost);
  return true;
}

bool SharedCounter::sleep_until(std::uint32_t value, const Backoff& backoff, const std::atomic<bool>* lost) const {
  sleepers_.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  while (!reached(value) && !(lost != nullptr && *lost)) {
    // The kernel sleeps only if the word still has the value seen here.
    const std::uint32_t seen = this->value();
    if (static_cast<std::int32_t>(seen - value) >= 0) break;
    futex(value_, FUTEX_WAIT, seen, &kLongestSleep);
    if (!reached(value)) backoff.expect_not_abandoned();  // may throw: the owner's wake-up is then superfluous
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return reached(value);
}

}  // namespace annulus
