#include "collectives/all_reduce.h"

#include "kernels/base/error.h"

namespace annulus {
namespace {

[[noreturn]] void only_all_reduces(const AllReduceInfo& info) {
  fail("this all-reduce has no reduce-scatter or all-gather: {}", info.description);
}

}  // namespace

void AllReduce::expect_possible(const Request& request) const {
  if (request.verb != Verb::all_reduce && !info_.all_verbs) only_all_reduces(info_);
}

Range AllReduce::chunk(std::size_t) const {
  only_all_reduces(info_);
}

}  // namespace annulus
