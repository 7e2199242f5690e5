#pragma once

namespace annulus::cpu {

// The number of threads that the calling thread computes with. A new thread has the process's default, of
// OMP_NUM_THREADS or one for each processor, whatever the thread that starts it has.
int threads();
void compute_with(int threads);

}  // namespace annulus::cpu
