#include "collectives/doubling.h"

#include <algorithm>
#include <array>
#include <bit>

namespace annulus {
namespace {

constexpr int kTag = 0;  // MPI keeps messages between two ranks in order

}  // namespace

Doubling::Doubling(const World& world, std::shared_ptr<Patience> patience)
    : communicator_(world.duplicate()),
      patience_(std::move(patience)),
      rank_(world.rank()),
      size_(world.size()),
      power_(static_cast<int>(std::bit_floor(static_cast<unsigned>(world.size())))) {
  for (int rank = 0; rank < size_; ++rank) ranks_in_job_.push_back(world.rank_in_job(rank));
}

void Doubling::sum(std::span<float> values) {
  arrived_.resize(std::max(arrived_.size(), values.size()));
  if (rank_ >= power_) {
    send(values, rank_ - power_);
    receive(values, rank_ - power_);
    return;
  }
  const bool stands_in = rank_ + power_ < size_;  // for a rank beyond the power of two
  if (stands_in) {
    const std::span<float> theirs = std::span(arrived_).first(values.size());
    receive(theirs, rank_ + power_);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
  }
  for (int bit = 1; bit < power_; bit *= 2) exchange(values, rank_ ^ bit);
  if (stands_in) send(values, rank_ + power_);
}

void Doubling::exchange(std::span<float> values, int with) {
  const std::span<float> theirs = std::span(arrived_).first(values.size());
  std::array<MPI_Request, 2> requests;
  check(
      MPI_Irecv(theirs.data(), mpi_count(theirs.size()), MPI_FLOAT, with, kTag, communicator_.handle(), &requests[0]));
  check(
      MPI_Isend(values.data(), mpi_count(values.size()), MPI_FLOAT, with, kTag, communicator_.handle(), &requests[1]));
  bytes_sent_ += values.size_bytes();
  wait(requests, with);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
}

void Doubling::send(std::span<const float> values, int to) {
  MPI_Request request;
  check(MPI_Isend(values.data(), mpi_count(values.size()), MPI_FLOAT, to, kTag, communicator_.handle(), &request));
  bytes_sent_ += values.size_bytes();
  wait({&request, 1}, to);
}

void Doubling::receive(std::span<float> values, int from) {
  MPI_Request request;
  check(MPI_Irecv(values.data(), mpi_count(values.size()), MPI_FLOAT, from, kTag, communicator_.handle(), &request));
  wait({&request, 1}, from);
}

void Doubling::wait(std::span<MPI_Request> requests, int peer) {
  patience_->activity().await(ranks_in_job_[static_cast<std::size_t>(peer)]);
  const TraceSpan span(lane_, "wait for bytes");
  const auto complete = [&] {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    return done != 0;
  };
  for (int looks = 0; !complete(); ++looks) patience_->pause(looks);
}

}  // namespace annulus
