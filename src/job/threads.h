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

// What may decide it. The first of these that is given does; the affinity mask limits what comes from the environment,
// which is a wish for any program, and only warns about --threads.
struct ThreadWishes {
  int option = 0;                             // --threads; 0: not given
  const char* omp_num_threads = nullptr;      // null: not in the environment; of a list, the first number
  const char* slurm_cpus_per_task = nullptr;  // likewise
  int allowed = 1;                            // processors, by the affinity mask
};
Threads choose_threads(const ThreadWishes& wishes);

// For this process, with --threads.
Threads choose_threads(int option);

// On rank 0: all ranks' threads beside the processors that they may use. A node whose ranks have more threads than
// processors is a warning, and so is what choose_threads() warns of. Collective.
struct ThreadReport {
  std::string text;     // of rank 0's node
  std::string warning;  // empty: none
};
ThreadReport report_threads(const World& world, const Threads& own);

}  // namespace annulus
