#include "src/job/batch_job.h"

#include <fmt/format.h>

namespace annulus {

std::string batch_job(const std::function<const char*(const char*)>& variable) {
  const auto value = [&](const char* name) -> std::string {
    const char* text = variable(name);
    return text == nullptr ? "" : text;
  };
  const auto after = [](const std::string& before, const std::string& text) {
    return text.empty() || text == "0" ? "" : before + text;
  };
  if (const std::string job = value("SLURM_JOB_ID"); !job.empty()) {
    const std::string array = value("SLURM_ARRAY_JOB_ID");
    return fmt::format("Slurm job {}{}", array.empty() ? job : array + '_' + value("SLURM_ARRAY_TASK_ID"),
                       after(", restart ", value("SLURM_RESTART_COUNT")));
  }
  if (const std::string job = value("PBS_JOBID"); !job.empty())
    return "PBS job " + job;  // names the array's member, too
  if (const std::string job = value("LSB_JOBID"); !job.empty()) {
    const std::string member = value("LSB_JOBINDEX");
    return fmt::format("LSF job {}{}{}", job, member.empty() || member == "0" ? "" : fmt::format("[{}]", member),
                       value("LSB_RESTART") == "Y" ? ", restarted" : "");
  }
  return "";
}

}  // namespace annulus
