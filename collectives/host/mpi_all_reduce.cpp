#include "collectives/host/mpi_all_reduce.h"

#include <algorithm>

namespace annulus {

namespace {

constexpr std::size_t kLargestCall = std::size_t{1} << 30;  // floats; MPI counts with int

}  // namespace

void MpiAllReduce::run(std::span<float> values, const Collective&) {
  while (!values.empty()) {
    const std::span<float> now = values.first(std::min(values.size(), kLargestCall));
    check(MPI_Allreduce(MPI_IN_PLACE, now.data(), mpi_count(now.size()), MPI_FLOAT, MPI_SUM, communicator_.handle()));
    values = values.subspan(now.size());
  }
}

}  // namespace annulus
