#pragma once

#include <cstddef>

namespace annulus {

// Lines on stderr that scripts/launch reads, if the environment variable ANNULUS_REPORT_STATUS is set.

// Reports the job's exit status: mpirun's status is always 0 if mpirun does not end the job when a rank dies. Call
// last, from a single rank or from several with the same arguments.
void report_job_status(int status, std::ptrdiff_t ranks_lost);

// Reports that from now on the job survives lost ranks. Before that, a rank that dies leaves the others waiting in
// MPI_Init, without an error. Call from a single rank.
void report_survival();

}  // namespace annulus
