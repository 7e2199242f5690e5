// The ring's schedule over MPI, for SimGrid's simulated machines (check_prediction.py): a rank sends and receives the
// same messages as Ring::all_reduce(), in the same order, without adding. Prints the seconds of the slowest rank.
//
//    ring BYTES [SEGMENT_BYTES]      segments as over real MPI messages between nodes if not given
#include <mpi.h>
#include <smpi/smpi.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "collectives/ring/ring_partition.h"

namespace {

// In memory with arbitrary content.
class Exchanges {
 public:
  Exchanges(float* values, std::size_t in_flight) : values_(values), requests_(2 * in_flight) {}

  void post(const annulus::RingExchange& exchange, std::size_t slot, int next, int previous) {
    MPI_Irecv(values_ + exchange.receive.begin, static_cast<int>(exchange.receive.size()), MPI_FLOAT, previous, 0,
              MPI_COMM_WORLD, &requests_[2 * slot]);
    MPI_Isend(values_ + exchange.send.begin, static_cast<int>(exchange.send.size()), MPI_FLOAT, next, 0, MPI_COMM_WORLD,
              &requests_[2 * slot + 1]);
  }
  void collect(std::size_t slot) { MPI_Waitall(2, &requests_[2 * slot], MPI_STATUSES_IGNORE); }

 private:
  float* values_;
  std::vector<MPI_Request> requests_;
};

// Ranks leave a barrier a latency apart, but simulated clocks agree.
double common_start() {
  double begin = MPI_Wtime();
  MPI_Allreduce(MPI_IN_PLACE, &begin, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  begin += 1;  // by then every rank has received it
  const double wait = begin - MPI_Wtime();
  const timespec time{static_cast<time_t>(wait), static_cast<long>(1e9 * (wait - std::floor(wait)))};
  nanosleep(&time, nullptr);
  return begin;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::size_t bytes = std::stoull(argv[1]);
  annulus::RingOptions options = annulus::message_ring_options(false);
  if (argc > 2) options.segment_bytes = std::stoull(argv[2]);
  const annulus::RingPartition cut(bytes / sizeof(float), static_cast<std::size_t>(size), options);

  auto* values = static_cast<float*>(SMPI_SHARED_MALLOC(bytes));
  Exchanges exchanges(values, cut.window);
  const double begun = common_start();
  for (std::size_t number = 0; number < cut.exchanges + cut.window; ++number) {
    if (number >= cut.window) exchanges.collect(number % cut.window);
    if (number < cut.exchanges)
      exchanges.post(cut.exchange(static_cast<std::size_t>(rank), number), number % cut.window, (rank + 1) % size,
                     (rank + size - 1) % size);
  }
  double seconds = MPI_Wtime() - begun;
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%.9g\n", seconds);
  SMPI_SHARED_FREE(values);
  MPI_Finalize();
}
