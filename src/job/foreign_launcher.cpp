#include "src/job/foreign_launcher.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "src/job/launched_rank.h"
#include "src/job/machine.h"

namespace annulus {
namespace {

struct Launcher {
  const char* name;
  std::vector<const char*> ranks;  // variables for the rank; the first that is set counts
  std::vector<const char*> sizes;  // variables for the number of processes; the first that is set counts
  bool needs_rank = true;          // the size alone may describe something else
  bool (*present)() = nullptr;     // whether the variables are a running job's, not leftovers; null: not known
  const char* advice = "mpirun";   // this MPI's own launchers
};

// An inner launcher's variables say more about a process than the outer launcher's. So PMI's variables, which several
// launchers set, come after the launchers' variables.
const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> kLaunchers{
      {"srun", {"SLURM_PROCID"}, {"SLURM_STEP_NUM_TASKS"}, false, nullptr, "srun --mpi=pmix or mpirun"},
      {"jsrun", {"JSM_NAMESPACE_RANK"}, {"JSM_NAMESPACE_SIZE"}},
      {"Flux", {"FLUX_TASK_RANK"}, {"FLUX_JOB_SIZE"}},
      {"PALS (HPE Cray's mpiexec or aprun)", {"PALS_RANKID"}, {"PMI_SIZE", "PALS_LOCAL_SIZE"}},
      {"ALPS (Cray's aprun)", {"ALPS_APP_PE"}, {}},
      {"MVAPICH's mpirun_rsh",
       {"MVP_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "MPIRUN_RANK"},
       {"MVP_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPIRUN_NPROCS"}},
      {"another MPI's mpiexec (MPICH's, Intel's or MVAPICH's)",
       {"PMI_RANK", "PMI_ID"},
       {"PMI_SIZE", "MPI_LOCALNRANKS"},
       true,
       [] { return std::getenv("PMI_FD") == nullptr || has_pmi_server(); }},
      {"torchrun (or a launcher like it)", {"RANK"}, {"WORLD_SIZE"}},
      {"another Open MPI's mpirun", {"OMPI_COMM_WORLD_RANK"}, {"OMPI_COMM_WORLD_SIZE"}, true, has_pmix_server},
      {"a launcher with PMIx", {"PMIX_RANK"}, {}, true, has_pmix_server},
  };
  return kLaunchers;
}

struct Variable {
  const char* name;
  int value;
};

std::optional<int> whole_number(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return *end != '\0' || value < 0 || value > 100'000'000 ? std::nullopt : std::optional(static_cast<int>(value));
}

std::optional<Variable> first_of(const std::vector<const char*>& variables) {
  for (const char* name : variables)
    if (const auto value = whole_number(name)) return Variable{name, *value};
  return std::nullopt;
}

ForeignLaunch describe(const Launcher& launcher, int rank, const std::optional<Variable>& size, const char* variable) {
  const std::string mpi = mpi_library();
  const std::string count = size ? std::to_string(size->value) : "several";
  return {rank,
          fmt::format("{} started this process as one of {} ({}={}), but this program has another MPI ({}), which sees "
                      "a world of 1: start it with {}{}; for a single process, remove the variable (env -u {} ...)",
                      launcher.name, count, variable, std::getenv(variable), mpi.substr(0, mpi.find(',')),
                      launcher.advice, size ? fmt::format(" -np {}", size->value) : "", variable)};
}

std::optional<ForeignLaunch> launched_by(const Launcher& launcher) {
  const auto rank = first_of(launcher.ranks), size = first_of(launcher.sizes);
  const bool one_of_many = size && size->value > 1 && (rank || !launcher.needs_rank);
  // A rank above 0 shows that there are several, whatever their number.
  const bool later_rank = launcher.needs_rank && rank && rank->value > 0 && (!size || size->value > 1);
  if (!one_of_many && !later_rank) return std::nullopt;
  if (launcher.present != nullptr && !launcher.present()) return std::nullopt;
  return describe(launcher, rank ? rank->value : 0, one_of_many ? size : std::nullopt,
                  one_of_many ? size->name : rank->name);
}

// Programs that PBS's pbsdsh starts have a task number above 1, the job's script has 1. PBS_NP is the job's.
std::optional<ForeignLaunch> launched_by_pbsdsh() {
  const auto task = whole_number("PBS_TASKNUM");
  if (!task || *task < 2) return std::nullopt;
  return describe({"pbsdsh", {}, {}}, 0, std::nullopt, "PBS_TASKNUM");
}

}  // namespace

const std::optional<ForeignLaunch>& foreign_launch() {
  static const std::optional<ForeignLaunch> kLaunch = find_foreign_launch();
  return kLaunch;
}

std::optional<ForeignLaunch> find_foreign_launch() {
  if (has_pmix_server() && whole_number("OMPI_COMM_WORLD_SIZE") == 1) return std::nullopt;  // mpirun -np 1
  for (const Launcher& launcher : launchers())
    if (auto found = launched_by(launcher)) return found;
  return launched_by_pbsdsh();
}

std::string unused_tasks(int world_size) {
  const int tasks = whole_number("SLURM_NTASKS").value_or(1);
  if (world_size > 1 || tasks < 2 || whole_number("SLURM_STEP_NUM_TASKS") || whole_number("OMPI_COMM_WORLD_SIZE"))
    return "";
  return fmt::format(
      "a single rank, though Slurm's allocation has {} tasks (SLURM_NTASKS): srun --mpi=pmix, or mpirun "
      "-np {}, would start them all",
      tasks, tasks);
}

}  // namespace annulus
