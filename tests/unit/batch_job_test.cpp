#include "src/job/batch_job.h"

#include <catch2/catch.hpp>
#include <map>

namespace annulus {
namespace {

std::string described(const std::map<std::string, std::string>& environment) {
  return batch_job([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_CASE("a batch job is named as the batch system's commands name it") {
  CHECK(described({}).empty());
  CHECK(described({{"SLURM_JOB_ID", "123"}, {"SLURM_RESTART_COUNT", "0"}}) == "Slurm job 123");
  CHECK(described({{"SLURM_JOB_ID", "123"}, {"SLURM_RESTART_COUNT", "2"}}) == "Slurm job 123, restart 2");
  CHECK(described({{"SLURM_JOB_ID", "125"}, {"SLURM_ARRAY_JOB_ID", "123"}, {"SLURM_ARRAY_TASK_ID", "0"}}) ==
        "Slurm job 123_0");
  CHECK(described({{"PBS_JOBID", "7[2].server"}}) == "PBS job 7[2].server");
  CHECK(described({{"LSB_JOBID", "55"}, {"LSB_JOBINDEX", "0"}}) == "LSF job 55");
  CHECK(described({{"LSB_JOBID", "55"}, {"LSB_JOBINDEX", "3"}, {"LSB_RESTART", "Y"}}) == "LSF job 55[3], restarted");
}

}  // namespace annulus
