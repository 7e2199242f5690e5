#include "src/job/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace annulus {
namespace {

std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler must not lock");

}  // namespace

// The new thread ensures that at least one thread accepts the signals. Older threads may accept them too: MPI's, which
// do not compute.
void keep_stop_signals_from_computing() {
  std::thread([] {
    while (true) pause();
  }).detach();
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void watch_for_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { requested = true; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags |= SA_RESETHAND;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

bool stop_requested() {
  return requested;
}

void request_stop() {
  requested = true;
}

}  // namespace annulus
