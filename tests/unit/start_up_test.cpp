#include "src/metrics/start_up.h"

#include <catch2/catch.hpp>

namespace annulus {

TEST_CASE("the parts of a start-up add up to the time since the program's start") {
  StartUp start_up;
  for (const auto part : {StartUp::mpi, StartUp::consistency, StartUp::device, StartUp::consistency}) {
    const double until = now_seconds() + 0.01;
    while (now_seconds() < until) continue;
    start_up.mark(part);
  }
  const double whole = now_seconds() - program_begun();
  CHECK(start_up.total() == Approx(whole).margin(1e-3));
  CHECK(start_up.seconds()[StartUp::device] >= 0.01);
  CHECK(start_up.seconds()[StartUp::consistency] >= 0.02);
  CHECK(start_up.seconds()[StartUp::data] == 0);
  CHECK(start_up.mark(StartUp::data, 7) == 7);
  CHECK(to_string(StartUp()).starts_with("mpi 0.000, consistency 0.000, device 0.000"));
}

}  // namespace annulus
