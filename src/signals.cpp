#include "src/signals.h"

#include <atomic>
#include <csignal>

namespace annulus {
namespace {

std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not lock");

}  // namespace

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

}  // namespace annulus
