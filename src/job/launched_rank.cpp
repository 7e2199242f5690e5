#include "src/job/launched_rank.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <thread>

namespace annulus {
namespace {

// A launcher ends all ranks as soon as any rank exits with an error, and Open MPI's mpirun may take a second to forward
// what ranks have printed.
constexpr std::chrono::seconds kTimeToReport(3);

std::optional<int> number(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::nullopt : std::optional(std::atoi(value));
}

// Slurm's job steps: the task is this program, or has started it.
bool is_in_slurm_task() {
  const auto task = number("SLURM_TASK_PID");
  return task && std::getenv("SLURM_STEP_ID") != nullptr && (*task == getpid() || getpgid(*task) == getpgrp());
}

}  // namespace

bool has_pmix_server() {
  std::error_code error;
  const char* folder = std::getenv("PMIX_SERVER_TMPDIR");
  return std::getenv("PMIX_NAMESPACE") != nullptr && folder != nullptr && std::filesystem::is_directory(folder, error);
}

bool has_pmi_server() {
  const auto descriptor = number("PMI_FD");
  return (descriptor && fcntl(*descriptor, F_GETFD) != -1) || std::getenv("PMI_PORT") != nullptr;
}

std::optional<int> launched_rank() {
  if (has_pmix_server()) return number("PMIX_RANK");
  if (has_pmi_server()) return number(std::getenv("PMI_RANK") != nullptr ? "PMI_RANK" : "PMI_ID");
  if (is_in_slurm_task()) return number("SLURM_PROCID");
  return std::nullopt;
}

std::optional<int> launched_local_rank() {
  if (!launched_rank()) return std::nullopt;
  // Open MPI's, MPICH's and Intel's, Slurm's.
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const auto rank = number(variable)) return rank;
  return std::nullopt;
}

bool mpirun_ends_with_a_rank() {
  const char* recovers = std::getenv("OMPI_MCA_orte_enable_recovery");
  return std::getenv("OMPI_MCA_orte_launch") != nullptr && (recovers == nullptr || recovers == std::string_view("0"));
}

void let_first_rank_report() {
  std::this_thread::sleep_for(kTimeToReport);
}

}  // namespace annulus
