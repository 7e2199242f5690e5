#include "kernels/cpu/loops/threads.h"

#include <omp.h>

namespace annulus::cpu {

int threads() {
  return omp_get_max_threads();
}

void compute_with(int threads) {
  omp_set_num_threads(threads);
}

}  // namespace annulus::cpu
