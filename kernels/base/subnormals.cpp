#include "kernels/base/subnormals.h"

#include "kernels/base/error.h"

namespace annulus {

void expect_flushed_subnormals() {
  int threads = 0, keeping = 0;
#pragma omp parallel reduction(+ : threads, keeping)
  {
    ++threads;
    if (!flushes_subnormals()) ++keeping;
  }
  if (keeping > 0)
    fail(
        "{} of {} threads do not flush subnormal numbers to zero, which slows training down: a library has changed the "
        "processor's floating-point mode (MXCSR) since the start of the program",
        keeping, threads);
}

}  // namespace annulus
