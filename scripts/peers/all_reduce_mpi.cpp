// MPI_Allreduce in place, of the MPI that this is built with.
#include <mpi.h>

#include "all_reduce_peer.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const peer::Options options = peer::parse(argc, argv);
  peer::Rank rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &rank.ranks);
  rank.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
  rank.maximum = [](double value) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return value;
  };
  rank.sum = [](float* values, std::size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  peer::run(rank, options, peer::huge_buffer(options.largest()));
  MPI_Finalize();
}
