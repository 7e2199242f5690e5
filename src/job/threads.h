#pragma once

#include <string>

#include "collectives/world/world.h"

namespace annulus {

// The number of threads that a rank computes with on a CPU.
struct Threads {
  int count = 1;
  std::string source;   // "--threads", "OMP_NUM_THREADS", ...
  std::string warning;  // empty: none
};

// The inputs of the choice; the first one that is given decides. The processors that this process may use limit numbers
// from the environment, which are meant for any program; --threads beyond them only causes a warning.
struct ThreadWishes {
  int option = 0;                             // --threads; 0: not given
  const char* omp_num_threads = nullptr;      // null: not in the environment; the first number of a list
  const char* slurm_cpus_per_task = nullptr;  // likewise
  int allowed = 1;                            // processors
  std::string allowed_by = "affinity mask";   // or the control group that allows fewer
};
Threads choose_threads(const ThreadWishes& wishes);

// For this process, with --threads.
Threads choose_threads(int option);

// Reports, on rank 0, all ranks' threads and the processors that they may use. Warns if the ranks of a node have more
// threads than processors, and passes on warnings of choose_threads(). Collective.
struct ThreadReport {
  std::string text;     // of rank 0's node
  std::string warning;  // empty: none
};
ThreadReport report_threads(const World& world, const Threads& own);

}  // namespace annulus
