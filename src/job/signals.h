#pragma once

namespace annulus {

// What `annulus train` exits with where it was asked to stop and has left a checkpoint to resume from: sysexits.h's
// EX_TEMPFAIL, "try again", which batch scripts take as the sign to requeue.
constexpr int kStoppedExitCode = 75;

// From here on SIGINT, SIGTERM and SIGUSR1 go neither to this thread nor to any that it starts, but to one that does
// nothing else. For the thread that computes, before it starts others that do, as OpenMP's.
//
// Why: oneDNN's matrix products for x64 have the stack pointer in the middle of a buffer, and what the kernel puts
// there for a handler overwrites what lies before it. (https://github.com/uxlfoundation/oneDNN/issues/4845, mended
// in March 2026.)
void keep_stop_signals_from_computing();

// From here on these signals (what batch systems send before a time limit is SIGUSR1 or SIGTERM) ask for a stop instead
// of ending the process. A second SIGINT or SIGTERM ends it; SIGUSR1 may come again, as it does where a batch system
// sends it to the ranks as well as to mpirun, which passes it on.
void watch_for_stop_signals();

bool stop_requested();

}  // namespace annulus
