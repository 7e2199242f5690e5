#pragma once

namespace annulus {

// Exit status of `annulus train` if it was asked to stop and has left a checkpoint to resume from: sysexits.h's
// EX_TEMPFAIL, "try again", which batch scripts take as the sign to requeue.
constexpr int kStoppedExitCode = 75;

// Exit status of `annulus train` if another job continues the run: neither complete nor to be requeued.
constexpr int kHandedOverExitCode = 76;

// From now on SIGINT, SIGTERM and SIGUSR1 are delivered neither to this thread nor to any that it starts, but to a
// thread that does nothing else. The computing thread calls this before it starts more computing threads, such as
// OpenMP's.
//
// Reason: oneDNN's matrix products for x64 keep the stack pointer in the middle of a buffer, so the frame that the
// kernel pushes for a signal handler overwrites part of the buffer.
// (https://github.com/uxlfoundation/oneDNN/issues/4845, fixed in March 2026.)
void keep_stop_signals_from_computing();

// From now on these signals (batch systems send SIGUSR1 or SIGTERM before a time limit) request a stop instead of
// ending the process. A second SIGINT or SIGTERM ends it. SIGUSR1 may be repeated, as happens if a batch system sends
// it both to the ranks and to mpirun, which forwards it.
void watch_for_stop_signals();

bool stop_requested();
void request_stop();  // as such a signal does

}  // namespace annulus
