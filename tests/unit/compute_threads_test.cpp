#include <omp.h>

#include <catch2/catch.hpp>
#include <future>

#include "kernels/cpu/loops/threads.h"

namespace annulus {

TEST_CASE("each thread computes with a number of threads of its own") {
  const int before = cpu::threads();
  const auto found = std::async(std::launch::async, [wanted = before + 1] {
                       cpu::compute_with(wanted);
                       int count = 0;
#pragma omp parallel reduction(+ : count)
                       count += 1;
                       return count;
                     }).get();
  CHECK(found == before + 1);
  CHECK(cpu::threads() == before);
}

}  // namespace annulus
