#include "collectives/all_reduce.h"

#include "kernels/base/error.h"

namespace annulus {
namespace {

[[noreturn]] void no_halves(const AllReduceInfo& info) {
  fail("this all-reduce has no halves: {}", info.description);
}

}  // namespace

void AllReduce::expect_possible(const Request& request) const {
  if (request.verb != Verb::all_reduce && !info_.halves) no_halves(info_);
}

Range AllReduce::chunk(std::size_t) const {
  no_halves(info_);
}

}  // namespace annulus
