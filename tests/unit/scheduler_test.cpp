#include "src/job/scheduler.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <string>

namespace annulus {
namespace {

// Sets or unsets one of Slurm's variables for the lifetime of this object.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Environment() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::optional<std::string> complaint(const char* step, const char* job, int world_size) {
  const Environment step_tasks("SLURM_STEP_NUM_TASKS", step);
  const Environment job_tasks("SLURM_NTASKS", job);
  return scheduler_complaint(world_size);
}

}  // namespace

TEST_CASE("several Slurm tasks in a world of one give a warning") {
  const auto step = complaint("4", nullptr, 1);
  REQUIRE(step.has_value());
  CHECK_THAT(*step, Catch::Contains("4 tasks (SLURM_STEP_NUM_TASKS)") && Catch::Contains("srun --mpi=pmix") &&
                        Catch::Contains("-np 4"));
  const auto job = complaint(nullptr, "3", 1);
  REQUIRE(job.has_value());
  CHECK_THAT(*job, Catch::Contains("3 tasks (SLURM_NTASKS)"));
}

TEST_CASE("a Slurm step's task count takes precedence over the job's") {
  CHECK_FALSE(complaint("1", "8", 1));
  const auto both = complaint("2", "8", 1);
  REQUIRE(both.has_value());
  CHECK_THAT(*both, Catch::Contains("2 tasks"));
}

TEST_CASE("no warning if nothing is wrong") {
  CHECK_FALSE(complaint(nullptr, nullptr, 1));
  CHECK_FALSE(complaint(nullptr, nullptr, 4));
  CHECK_FALSE(complaint("1", nullptr, 1));
  CHECK_FALSE(complaint(nullptr, "1", 1));
  CHECK_FALSE(complaint("4", "4", 4));
  CHECK_FALSE(complaint("4", "4", 2));  // any number of ranks may be right: only a world of one is certainly wrong
  CHECK_FALSE(complaint("", nullptr, 1));
  CHECK_FALSE(complaint("many", nullptr, 1));
}

}  // namespace annulus
