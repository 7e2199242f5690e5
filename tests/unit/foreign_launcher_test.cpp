#include "src/job/foreign_launcher.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace annulus {
namespace {

using Variables = std::map<std::string, std::string>;

// The environment has these variables and no others of a launcher, for the lifetime of this object.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (char** line = environ; *line != nullptr; ++line) {
      const std::string text = *line;
      const std::string name = text.substr(0, text.find('='));
      for (const char* prefix : {"SLURM_", "PMI", "PALS_", "ALPS_", "MV", "MPI", "JSM_", "FLUX_", "OMPI_COMM", "PBS_"})
        if (name.starts_with(prefix)) before_[name] = std::getenv(name.c_str());
    }
    for (const char* name : {"RANK", "WORLD_SIZE"})
      if (const char* value = std::getenv(name)) before_[name] = value;
    for (const auto& [name, value] : before_) unsetenv(name.c_str());
    for (const auto& [name, value] : variables) set_.push_back(name), setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const std::string& name : set_) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  Variables before_;
  std::vector<std::string> set_;
};

std::optional<ForeignLaunch> launch(const Variables& variables) {
  const Environment environment(variables);
  return find_foreign_launch();
}

}  // namespace

TEST_CASE("a process that another launcher started as one of several is refused, with the launcher and a remedy") {
  struct Case {
    Variables variables;
    int rank;
    const char* launcher;
    const char* size;
  };
  const std::vector<Case> cases{
      {{{"SLURM_STEP_NUM_TASKS", "4"}}, 0, "srun", "one of 4 (SLURM_STEP_NUM_TASKS=4)"},
      {{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"PMI_SIZE", "4"}, {"PMI_RANK", "3"}}, 3, "srun", "of 4"},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}}, 0, "MPICH", "one of 2 (PMI_SIZE=2)"},
      {{{"PMI_ID", "1"}, {"PMI_PORT", "vm:1"}, {"MPI_LOCALNRANKS", "3"}}, 1, "MPICH", "one of 3 (MPI_LOCALNRANKS=3)"},
      {{{"PALS_RANKID", "1"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "8"}}, 1, "PALS", "one of 8 (PMI_SIZE=8)"},
      {{{"ALPS_APP_PE", "2"}}, 2, "ALPS", "one of several (ALPS_APP_PE=2)"},
      {{{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "2"}}, 0, "Flux", "one of 2 (FLUX_JOB_SIZE=2)"},
      {{{"JSM_NAMESPACE_RANK", "0"}, {"JSM_NAMESPACE_SIZE", "6"}}, 0, "jsrun", "one of 6 (JSM_NAMESPACE_SIZE=6)"},
      {{{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}}, 1, "MVAPICH", "MV2_COMM_WORLD_SIZE=2"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}, 0, "torchrun", "one of 2 (WORLD_SIZE=2)"},
      {{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "a"}, {"PMIX_SERVER_TMPDIR", "/tmp"}}, 1, "PMIx", "PMIX_RANK=1"},
      {{{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"PMIX_NAMESPACE", "a"},
        {"PMIX_SERVER_TMPDIR", "/"}},
       0,
       "another Open MPI",
       "one of 2"},
      {{{"PBS_TASKNUM", "2"}, {"PBS_NP", "4"}}, 0, "pbsdsh", "one of several (PBS_TASKNUM=2)"},
  };
  for (const Case& each : cases) {
    const auto found = launch(each.variables);
    CAPTURE(each.launcher);
    REQUIRE(found.has_value());
    CHECK(found->rank == each.rank);
    CHECK_THAT(found->complaint, Catch::Contains(each.launcher) && Catch::Contains(each.size) &&
                                     Catch::Contains("mpirun") && Catch::Contains("env -u "));
  }
}

TEST_CASE("the remedy is this MPI's launcher with as many ranks") {
  CHECK_THAT(launch({{"SLURM_STEP_NUM_TASKS", "4"}})->complaint, Catch::Contains("srun --mpi=pmix or mpirun -np 4"));
  CHECK_THAT(launch({{"RANK", "1"}, {"WORLD_SIZE", "3"}})->complaint, Catch::Contains("start it with mpirun -np 3"));
}

TEST_CASE("a single process is not refused") {
  const std::vector<Variables> single{
      {},
      {{"SLURM_NTASKS", "4"}},                                                        // the shell of salloc -n 4
      {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},                                 // a batch script
      {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}},  // srun -n 1, an interactive step
      {{"PBS_NP", "16"}, {"PBS_TASKNUM", "1"}, {"PBS_NODENUM", "0"}},                 // a job's script
      {{"WORLD_SIZE", "4"}},                                                          // without a rank
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
      {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}, {"PMI_FD", "0"}},
      {{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"PMI_FD", "987"}},       // left over: no such descriptor
      {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},  // likewise, no server
      {{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_NAMESPACE", "a"}, {"PMIX_SERVER_TMPDIR", "/tmp"}, {"PBS_TASKNUM", "2"}},
      {{"SLURM_STEP_NUM_TASKS", ""}},
      {{"SLURM_STEP_NUM_TASKS", "many"}},
  };
  for (const Variables& variables : single) CHECK_FALSE(launch(variables));
}

TEST_CASE("a single process in a Slurm allocation of several tasks gives a note") {
  const auto note = [](const Variables& variables, int world_size) {
    const Environment environment(variables);
    return unused_tasks(world_size);
  };
  CHECK_THAT(note({{"SLURM_NTASKS", "4"}}, 1), Catch::Contains("4 tasks (SLURM_NTASKS)"));
  CHECK(note({{"SLURM_NTASKS", "4"}}, 4).empty());
  CHECK(note({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "1"}}, 1).empty());
  CHECK(note({{"SLURM_NTASKS", "1"}}, 1).empty());
  CHECK(note({}, 1).empty());
}

}  // namespace annulus
