#include "collectives/world/aligned_clock.h"

#include <limits>

#include "kernels/base/clock.h"

namespace annulus {

namespace {

constexpr int kExchanges = 50;  // enough to include an undisturbed one; well under a millisecond on a node
constexpr int kTag = 0;

void answer(int rank, MPI_Comm communicator) {
  for (int i = 0; i < kExchanges; ++i) {
    check(MPI_Recv(nullptr, 0, MPI_BYTE, rank, kTag, communicator, MPI_STATUS_IGNORE));
    const double here = now_seconds();
    check(MPI_Send(&here, 1, MPI_DOUBLE, rank, kTag, communicator));
  }
}

double ask_root(MPI_Comm communicator) {
  double shortest = std::numeric_limits<double>::infinity();
  double offset = 0;
  for (int i = 0; i < kExchanges; ++i) {
    const double begin = now_seconds();
    double there = 0;
    check(MPI_Send(nullptr, 0, MPI_BYTE, 0, kTag, communicator));
    check(MPI_Recv(&there, 1, MPI_DOUBLE, 0, kTag, communicator, MPI_STATUS_IGNORE));
    const double end = now_seconds();
    if (end - begin < shortest) {
      shortest = end - begin;
      offset = there - (begin + end) / 2;  // assumes that both directions take equally long
    }
  }
  return offset;
}

}  // namespace

double measured_clock_offset(const World& world, bool asks) {
  const Communicator communicator = world.duplicate();
  const std::vector<std::uint64_t> asking = world.gather(std::uint64_t{asks});
  if (asks) return ask_root(communicator.handle());
  if (world.root())
    for (int rank = 1; rank < world.size(); ++rank)
      if (asking[static_cast<std::size_t>(rank)]) answer(rank, communicator.handle());
  return 0;
}

double clock_offset_to_root(const World& world) {
  double offset = measured_clock_offset(world, world.local_rank() == 0 && !world.root());
  const Communicator node = Communicator::on_this_node(world.duplicate().handle());
  check(MPI_Bcast(&offset, 1, MPI_DOUBLE, 0, node.handle()));
  return offset;
}

}  // namespace annulus
