#include "collectives/world/world.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/error.h"

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

Communicator node_of(const Communicator& all, int ranks_per_node) {
  Communicator node = Communicator::on_this_node(all.handle());
  return ranks_per_node == 0 ? std::move(node) : Communicator::split(node.handle(), rank_in(node) / ranks_per_node);
}

}  // namespace

World::World(int ranks_per_node) : World(Communicator::duplicate(MPI_COMM_WORLD), ranks_per_node) {}

World::World(Communicator communicator, int ranks_per_node)
    : communicator_(std::move(communicator)), ranks_per_node_(ranks_per_node) {
  rank_ = rank_in(communicator_);
  size_ = size_of(communicator_);
  const Communicator node = node_of(communicator_, ranks_per_node);
  local_rank_ = rank_in(node);
  local_size_ = size_of(node);
  std::array<int, 2> extremes{-local_size_, local_size_};
  check(MPI_Allreduce(MPI_IN_PLACE, extremes.data(), 2, MPI_INT, MPI_MAX, communicator_.handle()));
  smallest_node_ = -extremes[0];
  largest_node_ = extremes[1];
  int job_rank = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &job_rank));
  ranks_in_job_ = all_gather(job_rank, MPI_INT, communicator_);
}

World World::node() const {
  return World(node_of(communicator_, ranks_per_node_), ranks_per_node_);
}

World World::across_nodes() const {
  return World(Communicator::split(communicator_.handle(), local_rank_), 1);
}

World World::apart() const {
  return World(duplicate(), 1);
}

Communicator World::duplicate() const {
  return Communicator::duplicate(communicator_.handle());
}

void World::barrier() const {
  check(MPI_Barrier(communicator_.handle()));
}

void World::broadcast(std::span<std::byte> bytes) const {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // MPI counts with an int
  for (std::size_t begin = 0; begin < bytes.size(); begin += kMostAtOnce) {
    const std::span<std::byte> piece = bytes.subspan(begin, std::min(kMostAtOnce, bytes.size() - begin));
    check(MPI_Bcast(piece.data(), mpi_count(piece.size()), MPI_BYTE, 0, communicator_.handle()));
  }
}

// MPI_Allreduce may add in a different order on every rank. Here one rank adds and broadcasts the result.
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

void World::minimum(std::span<double> values) const {
  all_reduce_in_place(values, MPI_DOUBLE, MPI_MIN, communicator_);
}

std::vector<std::uint64_t> World::gather(std::uint64_t value) const {
  return all_gather(value, MPI_UINT64_T, communicator_);
}

std::vector<double> World::gather(double value) const {
  return all_gather(value, MPI_DOUBLE, communicator_);
}

std::vector<double> World::gather(std::span<const double> values) const {
  std::vector<double> all(values.size() * static_cast<std::size_t>(size_));
  const int count = mpi_count(values.size());
  check(MPI_Allgather(values.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, communicator_.handle()));
  return all;
}

std::vector<std::byte> World::gather(std::span<const std::byte> bytes) const {
  std::vector<std::byte> all(bytes.size() * static_cast<std::size_t>(size_));
  const int count = mpi_count(bytes.size());
  check(MPI_Allgather(bytes.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, communicator_.handle()));
  return all;
}

void World::all_or_none(const std::function<void()>& attempt) const {
  std::string failure;
  try {
    attempt();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::vector<std::uint64_t> sizes = gather(std::uint64_t{failure.size()});
  const auto failed = std::ranges::find_if(sizes, [](std::uint64_t size) { return size > 0; });
  if (failed == sizes.end()) return;
  const auto rank = static_cast<int>(failed - sizes.begin());
  failure.resize(*failed);
  check(MPI_Bcast(failure.data(), mpi_count(failure.size()), MPI_CHAR, rank, communicator_.handle()));
  fail("{}{}", failure, rank_in_job(rank) == 0 ? "" : fmt::format(" (rank {})", rank_in_job(rank)));
}

// One message after the other: MPI_Gatherv would count all ranks' bytes together with an int.
std::vector<std::string> World::gather_texts(const std::string& text) const {
  constexpr int tag = 0;
  const std::vector<std::uint64_t> sizes = gather(std::uint64_t{text.size()});
  if (!root()) {
    check(MPI_Send(text.data(), mpi_count(text.size()), MPI_CHAR, 0, tag, communicator_.handle()));
    return {};
  }
  std::vector<std::string> texts{text};
  for (int rank = 1; rank < size_; ++rank) {
    std::string& other = texts.emplace_back(sizes[static_cast<std::size_t>(rank)], '\0');
    check(MPI_Recv(other.data(), mpi_count(other.size()), MPI_CHAR, rank, tag, communicator_.handle(),
                   MPI_STATUS_IGNORE));
  }
  return texts;
}

}  // namespace annulus
