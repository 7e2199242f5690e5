#pragma once

#include <functional>
#include <string>

namespace annulus {

// Describes this process's batch job: "Slurm job 123_4, restart 2", "PBS job 7.server", "LSF job 55[3]". Empty
// outside batch jobs. `variable`: returns an environment variable, or null.
std::string batch_job(const std::function<const char*(const char*)>& variable);

}  // namespace annulus
