#pragma once

namespace annulus::cpu {

// How many threads the calling thread computes with. A new thread has the process's default, from OMP_NUM_THREADS or a
// thread for each processor, whatever the thread that starts it has.
int threads();
void compute_with(int threads);

}  // namespace annulus::cpu
