#include "kernels/cpu/loops/squares.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/unit/random_values.h"

namespace annulus {

TEST_CASE("sums of squares depend neither on the slices that are added nor on the number of threads") {
  const std::size_t size = GENERATE(0, 1, 15, 16, 64, 1000, 1024, 100'003);
  CAPTURE(size);
  const std::vector<float> values = test::random_values(size, 1);
  const cpu::CpuDevice device(1);
  const double expected = cpu::squares(values).value();
  double naive = 0;
  for (const float value : values) naive += double{value} * value;
  CHECK(expected == Approx(naive).epsilon(1e-12));
  for (const std::size_t slice : {16u, 48u, 1040u, 50'000u}) {
    CAPTURE(slice);
    ExactSum sum;
    for (std::size_t begin = 0; begin < size; begin += slice)
      sum += cpu::squares(std::span(values).subspan(begin, std::min(slice, size - begin)));
    CHECK(sum.value() == expected);
  }
  const cpu::CpuDevice other(3);
  CHECK(cpu::squares(values).value() == expected);
}

}  // namespace annulus
