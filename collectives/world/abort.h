#pragma once

namespace annulus {

// Ends all ranks. Like MPI_Abort, but Open MPI prints no page of its own after this program's error. REQUIRES: MPI is
// initialized.
[[noreturn]] void abort_job(int status);

}  // namespace annulus
