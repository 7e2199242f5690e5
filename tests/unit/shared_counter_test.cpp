#include "collectives/world/shared_counter.h"

#include <catch2/catch.hpp>
#include <thread>

#include "kernels/base/error.h"

namespace annulus {

TEST_CASE("writes before raise() are visible after await()") {
  constexpr std::uint32_t kTurns = 2000;
  Backoff backoff(GENERATE(0, 1000));         // yields, or polls first
  backoff.set_urgent(GENERATE(false, true));  // sleeps immediately, or later
  SharedCounter ping, pong;
  std::uint32_t ball = 0;  // not atomic: only the counters order the accesses
  std::jthread other([&] {
    for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
      ping.await(turn, backoff);
      ++ball;
      pong.raise(turn);
    }
  });
  for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
    ++ball;
    ping.raise(turn);
    pong.await(turn, backoff);
  }
  other.join();
  CHECK(ball == 2 * kTurns);
}

TEST_CASE("awaiting a counter that is never raised can be abandoned") {
  Backoff backoff(0);
  const SharedCounter counter;
  counter.await(0, backoff);
  std::jthread impatient([&] { backoff.abandon(); });
  CHECK_THROWS_AS(counter.await(1, backoff), Error);
}

TEST_CASE("awaiting the counter of a lost rank ends") {
  const Backoff backoff(GENERATE(0, 1000));
  const SharedCounter counter;
  std::atomic<bool> lost = false;
  CHECK(counter.await(0, backoff, &lost));
  std::jthread loss([&] { lost = true; });
  CHECK_FALSE(counter.await(1, backoff, &lost));
  CHECK(counter.await(0, backoff, &lost));  // it was there before the loss
}

}  // namespace annulus
