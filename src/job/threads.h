#pragma once

#include <sched.h>

#include <climits>
#include <string>
#include <vector>

#include "collectives/world/world.h"

namespace annulus {

// How many threads a rank computes with on a CPU.
struct Threads {
  int count = 1;
  std::string source;   // "--threads", "OMP_NUM_THREADS", ...
  std::string warning;  // empty: none
};

// The choice's inputs; the first that is given decides. The processors that this process may use limit numbers from the
// environment, which are meant for any program; a larger --threads only causes a warning.
struct ThreadWishes {
  int option = 0;                             // --threads; 0: not given
  const char* omp_num_threads = nullptr;      // null: not in the environment; the first number in a list
  const char* slurm_cpus_per_task = nullptr;  // null: not in the environment
  int allowed = 1;                            // processors
  std::string allowed_by = "affinity mask";   // or the control group that allows fewer
  int share = INT_MAX;                        // this rank's share of processors that other ranks may use, too
};
Threads choose_threads(const ThreadWishes& wishes);

// Chooses for this process, with --threads, as if no other rank used its processors.
Threads choose_threads(int option);

// Chooses for this rank: ranks that may use the same processors share them. Collective.
Threads choose_threads(const World& world, int option);

// Returns each process's share of the processors in its affinity mask, at least 1: a processor in the masks of N
// processes counts as 1/N. If the processes have more than `quota` processors together, all shares shrink by the same
// factor. An empty mask, which the system could not give, has no limit.
std::vector<int> shares_of(const std::vector<cpu_set_t>& masks, int quota);

// Returns the number of processors that the ranks of a node may use together. Collective.
int processors_of(const World& node);

// Reports, on rank 0, all ranks' threads and the processors that they may use. Warns if a node's ranks have more
// threads than processors, and passes on choose_threads()'s warnings. Collective.
struct ThreadReport {
  std::string text;     // for rank 0's node
  std::string warning;  // empty: none
};
ThreadReport report_threads(const World& world, const Threads& own);

}  // namespace annulus
