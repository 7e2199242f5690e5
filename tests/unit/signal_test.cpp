#include "collectives/world/signal.h"

#include <catch2/catch.hpp>
#include <thread>

#include "kernels/base/error.h"

using namespace annulus;

TEST_CASE("what was written before a signal was raised is there after it was awaited") {
  constexpr std::uint32_t kTurns = 2000;
  Patience patience(GENERATE(0, 1000));        // yields, or looks first
  patience.set_urgent(GENERATE(false, true));  // sleeps at once, or later
  Signal ping, pong;
  std::uint32_t ball = 0;  // not atomic: the signals alone order what the threads do with it
  std::jthread other([&] {
    for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
      ping.await(turn, patience);
      ++ball;
      pong.raise(turn);
    }
  });
  for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
    ++ball;
    ping.raise(turn);
    pong.await(turn, patience);
  }
  other.join();
  CHECK(ball == 2 * kTurns);
}

TEST_CASE("a signal that nobody raises any longer is not awaited for ever") {
  Patience patience(0);
  const Signal signal;
  signal.await(0, patience);
  std::jthread impatient([&] { patience.abandon(); });
  CHECK_THROWS_AS(signal.await(1, patience), Error);
}
