#pragma once

#include <string>

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
};
Threads choose_threads(const ThreadWishes& wishes);

// Chooses for this process, with --threads.
Threads choose_threads(int option);

// Reports, on rank 0, all ranks' threads and the processors that they may use. Warns if a node's ranks have more
// threads than processors, and passes on choose_threads()'s warnings. Collective.
struct ThreadReport {
  std::string text;     // for rank 0's node
  std::string warning;  // empty: none
};
ThreadReport report_threads(const World& world, const Threads& own);

}  // namespace annulus
