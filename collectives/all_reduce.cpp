#include "collectives/all_reduce.h"

#include "kernels/base/error.h"

namespace annulus {
namespace {

[[noreturn]] void no_halves(const AllReduceInfo& info) {
  fail("this all-reduce has no halves: {}", info.description);
}

}  // namespace

AllReduce::Ticket AllReduce::reduce_scatter(DeviceView, Next, std::size_t) {
  no_halves(info_);
}

AllReduce::Ticket AllReduce::all_gather(DeviceView, Next, std::size_t) {
  no_halves(info_);
}

Range AllReduce::chunk(std::size_t) const {
  no_halves(info_);
}

}  // namespace annulus
