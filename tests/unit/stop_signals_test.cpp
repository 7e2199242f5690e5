#include <catch2/catch.hpp>

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <csignal>

#include "src/signals.h"

using annulus::watch_for_stop_signals;

namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};

bool blocks_all() {
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return std::ranges::all_of(kSignals, [&](int signal) { return sigismember(&blocked, signal) == 1; });
}

// Threads that compute are this one and OpenMP's. They must never run a handler: oneDNN's matrix products move the
// stack pointer.
int computing_threads_that_block_all(int threads) {
  std::atomic<int> count = 0;
#pragma omp parallel num_threads(threads)
  if (blocks_all()) ++count;
  return count;
}

}  // namespace

TEST_CASE("Stop signals go to a thread that does not compute", "[signals]") {
  const int before = omp_get_max_threads();
  omp_set_num_threads(2);
  REQUIRE(computing_threads_that_block_all(2) == 0);
  watch_for_stop_signals();
  CHECK(computing_threads_that_block_all(2) == 2);
  CHECK(computing_threads_that_block_all(1) == 1);
  CHECK(computing_threads_that_block_all(4) == 4);  // two are started anew
  omp_set_num_threads(before);
}
