#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include "src/job/signals.h"

namespace annulus {

namespace {

bool takes_none() {
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return std::ranges::all_of(std::array{SIGINT, SIGTERM, SIGUSR1},
                             [&](int signal) { return sigismember(&blocked, signal) == 1; });
}

int openmp_threads_that_take_none(int threads) {
  std::atomic<int> count = 0;
#pragma omp parallel num_threads(threads)
  if (takes_none()) ++count;
  return count;
}

}  // namespace

TEST_CASE("stop signals are blocked in compute threads and OpenMP's", "[stop_signals]") {
  int with_two = 0, with_four = 0;
  std::thread([&] {  // OpenMP starts others for each thread that uses it
    keep_stop_signals_from_computing();
    with_two = openmp_threads_that_take_none(2);
    with_four = openmp_threads_that_take_none(4);
  })
      .join();
  CHECK(with_two == 2);
  CHECK(with_four == 4);
  CHECK_FALSE(takes_none());
}

}  // namespace annulus
