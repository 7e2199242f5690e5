#include "src/job/scheduler.h"

#include <fmt/format.h>

#include <cstdlib>

namespace annulus {

std::optional<std::string> scheduler_complaint(int world_size) {
  if (world_size > 1) return std::nullopt;
  // srun passes each step its number of tasks; in a batch script only the job's number is known.
  for (const char* variable : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})
    if (const char* value = std::getenv(variable)) {
      const int tasks = std::atoi(value);
      if (tasks > 1)
        return fmt::format(
            "Slurm reports {} tasks ({}), but MPI sees a world of 1: start it with srun --mpi=pmix or mpirun "
            "-np {}, or request one task (--ntasks=1) if one is intended",
            tasks, variable, tasks);
      return std::nullopt;
    }
  return std::nullopt;
}

}  // namespace annulus
