#include "collectives/all_reduce.h"

#include "kernels/base/error.h"

namespace annulus {

void AllReduce::expect_possible(const Request& request) const {
  if (request.verb != Verb::all_reduce && !info_.halves) fail("this all-reduce has no halves: {}", info_.description);
}

Range AllReduce::chunk(std::size_t) const {
  fail("this all-reduce has no halves: {}", info_.description);
}

}  // namespace annulus
