#include "src/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace annulus {
namespace {

constexpr int kRepeatable = SIGUSR1;
constexpr int kEndingAtSecond[] = {SIGINT, SIGTERM};

std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not lock");

void handle() {
  struct sigaction action {};
  action.sa_handler = [](int) { requested = true; };
  action.sa_flags = SA_RESTART;
  sigaction(kRepeatable, &action, nullptr);
  action.sa_flags |= SA_RESETHAND;
  for (const int signal : kEndingAtSecond) sigaction(signal, &action, nullptr);
}

// oneDNN's matrix products have the stack pointer in the middle of a buffer of theirs (its issue 4845, of 2026):
// what the kernel puts there for a handler would overwrite what lies before it. So a thread that computes nothing gets
// the signals, and those that compute do not: this one, OpenMP's that it has started, and, as they inherit it, those
// that it will start.
void leave_to_another_thread() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, kRepeatable);
  for (const int signal : kEndingAtSecond) sigaddset(&signals, signal);
  std::thread([] {
    while (true) pause();
  }).detach();
#pragma omp parallel
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

void watch_for_stop_signals() {
  handle();
  leave_to_another_thread();
}

bool stop_requested() {
  return requested;
}

}  // namespace annulus
