// Ranks for programs that mpirun does not start: processes of one machine, with a barrier in shared memory.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <new>

#include "all_reduce_peer.h"

namespace peer {

constexpr int kMostRanks = 64;

inline int cores() {
  static const int count = [] {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  }();
  return count;
}

inline void pin(int rank) {
  cpu_set_t allowed, mine;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  CPU_ZERO(&mine);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && seen++ == rank) CPU_SET(cpu, &mine);
  sched_setaffinity(0, sizeof mine, &mine);
}

// Every rank raises its own flag and waits for the others', spinning or sleeping.
class Barrier {
 public:
  void wait(int rank, int ranks, bool spins) {
    const unsigned mine = flags_[rank].value.load(std::memory_order_relaxed) + 1;
    flags_[rank].value.store(mine);
    if (!spins) futex(rank, FUTEX_WAKE, kMostRanks);
    for (int other = 0; other < ranks; ++other)
      for (;;) {
        const unsigned seen = flags_[other].value.load(std::memory_order_acquire);
        if (static_cast<int>(seen - mine) >= 0) break;
        if (spins)
          __builtin_ia32_pause();
        else
          futex(other, FUTEX_WAIT, seen);
      }
  }

 private:
  struct alignas(128) Flag {
    std::atomic<unsigned> value = 0;
  };

  void futex(int rank, int operation, unsigned value) {
    syscall(SYS_futex, &flags_[rank].value, operation, value, nullptr, nullptr, 0);
  }

  Flag flags_[kMostRanks];
};

struct Meeting {
  Barrier barrier;
  double values[kMostRanks];
};

inline void* shared_memory(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return memory;
}

// Runs `body(rank)` in a process for each rank, which must set its `sum`. Returns the exit status. If a rank fails, the
// others are ended. `own_core`: each rank is alone on its core and spins at barriers, which would starve a library's
// threads.
template <class Body>
int run_forked(int ranks, bool own_core, Body body) {
  if (ranks < 1 || ranks > kMostRanks) return 2;
  auto* meeting = new (shared_memory(sizeof(Meeting))) Meeting;
  std::vector<pid_t> children;
  for (int number = 0; number < ranks; ++number) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (own_core) pin(number);
      Rank rank{.rank = number, .ranks = ranks, .barrier = {}, .maximum = {}, .sum = {}};
      rank.barrier = [=] { meeting->barrier.wait(number, ranks, own_core); };
      rank.maximum = [=](double value) {
        meeting->values[number] = value;
        meeting->barrier.wait(number, ranks, own_core);
        const double largest = *std::max_element(meeting->values, meeting->values + ranks);
        meeting->barrier.wait(number, ranks, own_core);
        return largest;
      };
      body(rank);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  int result = 0;
  for (std::size_t left = children.size(); left > 0; --left) {
    int status = 0;
    wait(&status);
    if (status == 0 || result != 0) continue;
    result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    for (const pid_t child : children) kill(child, SIGKILL);
  }
  return result;
}

}  // namespace peer
