#include "collectives/world.h"

namespace annulus {

namespace {

int rank_in(const Communicator& communicator) {
  int rank = 0;
  check(MPI_Comm_rank(communicator.handle(), &rank));
  return rank;
}

int size_of(const Communicator& communicator) {
  int size = 0;
  check(MPI_Comm_size(communicator.handle(), &size));
  return size;
}

template <class T>
void all_reduce_in_place(std::span<T> values, MPI_Datatype type, MPI_Op operation, const Communicator& communicator) {
  check(MPI_Allreduce(MPI_IN_PLACE, values.data(), mpi_count(values.size()), type, operation, communicator.handle()));
}

template <class T>
std::vector<T> all_gather(T value, MPI_Datatype type, const Communicator& communicator) {
  std::vector<T> values(static_cast<std::size_t>(size_of(communicator)));
  check(MPI_Allgather(&value, 1, type, values.data(), 1, type, communicator.handle()));
  return values;
}

}  // namespace

World::World() : communicator_(Communicator::duplicate(MPI_COMM_WORLD)) {
  rank_ = rank_in(communicator_);
  size_ = size_of(communicator_);
  const Communicator node = Communicator::on_this_node(communicator_.handle());
  local_rank_ = rank_in(node);
  local_size_ = size_of(node);
}

Communicator World::duplicate() const {
  return Communicator::duplicate(communicator_.handle());
}

void World::barrier() const {
  check(MPI_Barrier(communicator_.handle()));
}

void World::broadcast(std::span<std::byte> bytes) const {
  check(MPI_Bcast(bytes.data(), mpi_count(bytes.size()), MPI_BYTE, 0, communicator_.handle()));
}

// MPI_Allreduce may add in another order on every rank. Here one rank adds and the others are told.
void World::sum(std::span<double> values) const {
  check(MPI_Reduce(root() ? MPI_IN_PLACE : values.data(), values.data(), mpi_count(values.size()), MPI_DOUBLE, MPI_SUM,
                   0, communicator_.handle()));
  broadcast(std::as_writable_bytes(values));
}

void World::sum(std::span<std::int64_t> values) const {
  all_reduce_in_place(values, MPI_INT64_T, MPI_SUM, communicator_);
}

void World::maximum(std::span<double> values) const {
  all_reduce_in_place(values, MPI_DOUBLE, MPI_MAX, communicator_);
}

std::vector<std::uint64_t> World::gather(std::uint64_t value) const {
  return all_gather(value, MPI_UINT64_T, communicator_);
}

std::vector<double> World::gather(double value) const {
  return all_gather(value, MPI_DOUBLE, communicator_);
}

}  // namespace annulus
