#include "collectives/world/backoff.h"

#include <catch2/catch.hpp>
#include <thread>

#include "kernels/base/error.h"

namespace annulus {

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
