#pragma once

#include <cstddef>

namespace annulus {

// If the environment variable ANNULUS_REPORT_STATUS is set, reports the job's exit status on stderr, in a line that
// scripts/launch reads: mpirun's own is always 0 if it does not end the job when a rank dies. To be called by one rank,
// last of all.
void report_job_status(int status, std::ptrdiff_t ranks_lost);

}  // namespace annulus
