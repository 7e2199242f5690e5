#include "collectives/world/backoff.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/base/allowed_resources.h"
#include "kernels/base/error.h"

namespace annulus {

namespace {

// Exchanges in flight keep the network busy during a nap. Linux adds some 50 us to each nap, and the poll that follows
// costs system calls, which slow down the computation: so naps grow during a long wait, each twice the previous.
constexpr auto kNap = std::chrono::microseconds(20);
constexpr int kLongestNap = 5;  // doublings: 640 us

// Number of yields before sleeping: some 50 us if no other thread needs the core. If ranks share a core, the awaited
// rank gets it immediately, in a third of the time of falling asleep and being woken.
constexpr int kYields = 100;

// A wait that cannot sleep until it is woken naps after this time, although a caller is blocked on the result.
constexpr auto kLongestSpin = std::chrono::milliseconds(10);
constexpr auto kUrgentNap = std::chrono::microseconds(50);

}  // namespace

void Backoff::set_urgent(bool urgent) {
  const std::scoped_lock lock(mutex_);
  urgent_ = urgent;
  if (urgent) changed_.notify_one();
}

void Backoff::abandon() {
  const std::scoped_lock lock(mutex_);
  abandoned_ = true;
  changed_.notify_one();
}

void Backoff::expect_not_abandoned() const {
  if (abandoned_ || (interruption_ && *interruption_)) fail("an all-reduce was abandoned before it was complete");
}

void Backoff::rest(int polls) const {
  if (polls < polls_)
    _mm_pause();
  else
    std::this_thread::yield();
}

bool Backoff::rest_before_sleep(int polls) const {
  if (!urgent_ || polls >= polls_ + kYields) return false;
  rest(polls);
  return true;
}

bool Backoff::spins(int polls) const {
  return polls < polls_ || std::chrono::steady_clock::now() - began_ < kLongestSpin;
}

void Backoff::pause(int polls) {
  expect_not_abandoned();
  if (polls == 0) began_ = std::chrono::steady_clock::now();
  const bool urgent = urgent_;
  if (urgent && spins(polls)) return rest(polls);
  std::unique_lock lock(mutex_);
  const auto nap = urgent ? kUrgentNap : kNap * (1 << std::min(polls, kLongestNap));
  changed_.wait_for(lock, nap, [&] { return abandoned_ || (urgent_ && !urgent); });
}

int polls_on_this_node(int ranks) {
  constexpr int kPolls = 1000, kPollsOfMany = 20;
  return ranks <= allowed_processors().count ? kPolls : kPollsOfMany;
}

}  // namespace annulus
