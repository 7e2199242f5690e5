#include "collectives/world/patience.h"

#include <catch2/catch.hpp>
#include <thread>

#include "kernels/base/error.h"

using namespace annulus;

TEST_CASE("who waits looks and yields before sleeping only while that is urgent") {
  Patience patience(10);
  CHECK_FALSE(patience.rest_before_sleep(0));
  patience.set_urgent(true);
  int looks = 0;
  while (looks < 10'000 && patience.rest_before_sleep(looks)) ++looks;
  CHECK(looks > 10);
  CHECK(looks < 10'000);
  patience.set_urgent(false);
  CHECK_FALSE(patience.rest_before_sleep(0));
}

TEST_CASE("who waits may be told at any time that it is urgent, and that it is in vain") {
  Patience patience(10);
  bool abandoned = false;
  std::jthread waiter([&] {
    try {
      for (int looks = 0;; ++looks) patience.pause(looks);
    } catch (const Error&) {
      abandoned = true;
    }
  });
  for (int i = 0; i < 100; ++i) {
    patience.set_urgent(i % 2 == 0);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  patience.abandon();
  waiter.join();
  CHECK(abandoned);
}
