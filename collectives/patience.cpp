#include "collectives/patience.h"

#include <chrono>
#include <thread>

#include "kernels/error.h"

namespace annulus {

namespace {

constexpr auto kNap = std::chrono::microseconds(20);

}  // namespace

void Patience::pause() const {
  if (abandoned_.load(std::memory_order_relaxed)) fail("a sum over the ranks was abandoned before it was complete");
  if (!urgent_.load(std::memory_order_relaxed))
    std::this_thread::sleep_for(kNap);
  else if (crowded_)
    std::this_thread::yield();  // the rank that is waited for may be waiting for this core
}

}  // namespace annulus
