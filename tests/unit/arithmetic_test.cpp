#include "kernels/cpu/loops/arithmetic.h"

#include <omp.h>

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("arithmetic in registers uses the processor's widest ones, whatever the program was compiled for") {
  const int floats = __builtin_cpu_supports("avx512f") ? 16 : 8;
  CHECK(cpu::compute_in_registers(3) == 3 * 20 * floats * omp_get_max_threads());
}

}  // namespace annulus
