#include "src/job/scheduler.h"

#include <fmt/format.h>

#include <cstdlib>

namespace annulus {

std::optional<std::string> scheduler_complaint(int world_size) {
  if (world_size > 1) return std::nullopt;
  // srun tells each step its number of tasks; a batch script only knows that of the job.
  for (const char* variable : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})
    if (const char* value = std::getenv(variable)) {
      const int tasks = std::atoi(value);
      if (tasks > 1)
        return fmt::format(
            "Slurm says {} tasks ({}), but MPI sees a world of 1: start it by srun --mpi=pmix or mpirun "
            "-np {}, or ask for one task (--ntasks=1) if one is meant",
            tasks, variable, tasks);
      return std::nullopt;
    }
  return std::nullopt;
}

}  // namespace annulus
