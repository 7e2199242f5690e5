#include "collectives/patience.h"

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/error.h"

namespace annulus {

namespace {

// The exchanges in flight keep the wire busy meanwhile. Linux adds some 50 us, and the look that follows costs system
// calls, which the computation pays for: where bytes are long in coming, naps grow longer, each twice the one before.
constexpr auto kNap = std::chrono::microseconds(20);
constexpr int kLongestNap = 5;  // doublings: 640 us

}  // namespace

void Patience::set_urgent(bool urgent) {
  const std::scoped_lock lock(mutex_);
  urgent_ = urgent;
  if (urgent) changed_.notify_one();
}

void Patience::abandon() {
  const std::scoped_lock lock(mutex_);
  abandoned_ = true;
  changed_.notify_one();
}

void Patience::expect_not_abandoned() const {
  if (abandoned_) fail("a sum over the ranks was abandoned before it was complete");
}

void Patience::pause(int looks) {
  expect_not_abandoned();
  if (urgent_) {
    if (looks < looks_)
      _mm_pause();
    else
      std::this_thread::yield();
    return;
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kNap * (1 << std::min(looks, kLongestNap)), [&] { return urgent_ || abandoned_; });
}

int looks_on_this_node(int ranks) {
  constexpr int kLooks = 1000, kLooksOfMany = 20;
  return ranks <= sysconf(_SC_NPROCESSORS_ONLN) ? kLooks : kLooksOfMany;
}

}  // namespace annulus
