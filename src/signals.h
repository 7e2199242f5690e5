#pragma once

namespace annulus {

// From here on SIGINT, SIGTERM and SIGUSR1 (what batch systems send before a time limit) ask for a stop instead of
// ending the process. A second SIGINT or SIGTERM ends it; SIGUSR1 may come again, as it does where a batch system sends
// it to the ranks as well as to mpirun, which passes it on.
void watch_for_stop_signals();

bool stop_requested();

}  // namespace annulus
