#include "collectives/world/backoff.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <thread>

#include "kernels/base/error.h"

namespace annulus {
namespace {

double processor_seconds_of_this_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

TEST_CASE("a long urgent wait leaves its processor to others") {
  using namespace std::chrono_literals;
  Backoff backoff(10);
  backoff.set_urgent(true);
  const double before = processor_seconds_of_this_thread();
  const auto end = std::chrono::steady_clock::now() + 200ms;
  for (int polls = 0; std::chrono::steady_clock::now() < end; ++polls) backoff.pause(polls);
  CHECK(processor_seconds_of_this_thread() - before < 0.1);
}

TEST_CASE("an urgent wait polls and yields before it sleeps, any other sleeps") {
  Backoff backoff(10);
  CHECK_FALSE(backoff.rest_before_sleep(0));
  backoff.set_urgent(true);
  int polls = 0;
  while (polls < 10'000 && backoff.rest_before_sleep(polls)) ++polls;
  CHECK(polls > 10);
  CHECK(polls < 10'000);
  backoff.set_urgent(false);
  CHECK_FALSE(backoff.rest_before_sleep(0));
}

TEST_CASE("a wait can be made urgent, or abandoned, while it is running") {
  Backoff backoff(10);
  bool abandoned = false;
  std::jthread waiter([&] {
    try {
      for (int polls = 0;; ++polls) backoff.pause(polls);
    } catch (const Error&) {
      abandoned = true;
    }
  });
  for (int i = 0; i < 100; ++i) {
    backoff.set_urgent(i % 2 == 0);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  backoff.abandon();
  waiter.join();
  CHECK(abandoned);
}

}  // namespace annulus
