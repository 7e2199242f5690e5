#include <csignal>
#include <cstdio>
#include <mutex>

#include "tests/gpu/emulator/device_memory.h"

namespace emulated {
namespace {

struct sigaction action_before {};

// Then the access is repeated, and the previous handler gets its signal.
void report(int, siginfo_t* info, void*) {
  if (const char* const reason = reason_of_fault(info->si_addr))
    std::fprintf(stderr, "emulated GPU: illegal access at %p: %s\n", info->si_addr, reason);
  sigaction(SIGSEGV, &action_before, nullptr);
}

}  // namespace

// Checks every time: MPI and the test framework install handlers of their own.
void report_illegal_accesses() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction current {};
  sigaction(SIGSEGV, nullptr, &current);
  if (current.sa_sigaction == report) return;
  action_before = current;
  struct sigaction action {};
  action.sa_sigaction = report;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace emulated
