#pragma once

namespace annulus {

// From here on SIGINT, SIGTERM and SIGUSR1 (what batch systems send before a time limit) ask for a stop instead of
// ending the process. A second one ends it.
void watch_for_stop_signals();

bool stop_requested();

}  // namespace annulus
