#include "collectives/host/recursive_doubling.h"

#include <algorithm>
#include <array>
#include <bit>

namespace annulus {
namespace {

void add(std::span<const float> values, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i];
}

}  // namespace

RecursiveDoubling::RecursiveDoubling(const World& world, WireType wire, std::shared_ptr<AllReduceContext> context)
    : AllReduceAlgorithm({.order = "recursive doubling of " + to_string(wire), .wire = wire}, std::move(context)),
      channel_(world.channel()),
      wire_(wire),
      rank_(world.rank()),
      size_(world.size()),
      power_(static_cast<int>(std::bit_floor(static_cast<unsigned>(world.size())))),
      stands_in_(rank_ + power_ < size_),
      exchanges_(doubling_exchanges(static_cast<std::size_t>(rank_), static_cast<std::size_t>(size_))) {
  for (int rank = 0; rank < size_; ++rank) ranks_in_job_.push_back(world.rank_in_job(rank));
}

void RecursiveDoubling::run(std::span<float> values, const Collective&) {
  exchange_ = 0;
  if (rank_ >= power_) {
    send(values, rank_ - power_);
    std::ranges::copy(receive(values.size(), rank_ - power_), values.begin());
    return;
  }
  if (stands_in_) add(receive(values.size(), rank_ + power_), values);
  for (int bit = 1; bit < power_; bit *= 2) exchange(values, rank_ ^ bit);
  if (stands_in_)
    send(values, rank_ + power_);
  else if (power_ < size_ && wire_ != WireType::fp32)
    round_to(wire_, values);  // as the values that the stand-in ranks send are rounded
}

void RecursiveDoubling::exchange(std::span<float> values, int with) {
  std::array requests = {start_receiving(values.size(), with), start_sending(values, with)};
  wait(requests, with);
  add(arrived(values.size()), values);
}

void RecursiveDoubling::send(std::span<float> values, int to) {
  MPI_Request request = start_sending(values, to);
  wait({&request, 1}, to);
}

std::span<const float> RecursiveDoubling::receive(std::size_t count, int from) {
  MPI_Request request = start_receiving(count, from);
  wait({&request, 1}, from);
  return arrived(count);
}

MPI_Request RecursiveDoubling::start_sending(std::span<float> values, int to) {
  std::span<const std::byte> bytes = std::as_bytes(values);
  if (wire_ != WireType::fp32) {
    const auto coded = coded_sent_.first(coded_bytes(wire_, values.size()));
    round_to(wire_, values);
    encode(wire_, values, coded);
    bytes = coded;
  }
  MPI_Request request;
  channel_.start_sending(bytes, to, request);
  bytes_sent_ += bytes.size();
  return request;
}

MPI_Request RecursiveDoubling::start_receiving(std::size_t count, int from) {
  const auto landing = wire_ == WireType::fp32 ? std::as_writable_bytes(arrived_.first(count))
                                               : coded_arrived_.first(coded_bytes(wire_, count));
  MPI_Request request;
  channel_.start_receiving(landing, from, request);
  return request;
}

std::span<const float> RecursiveDoubling::arrived(std::size_t count) {
  const std::span<float> values = arrived_.first(count);
  if (wire_ != WireType::fp32) decode(wire_, coded_arrived_.first(coded_bytes(wire_, count)), values);
  return values;
}

void RecursiveDoubling::wait(std::span<MPI_Request> requests, int peer) {
  context()->progress.enter({"doubling exchange", ++exchange_, exchanges_});
  context()->progress.await(ranks_in_job_[static_cast<std::size_t>(peer)]);
  const TraceSpan span(lane(), "wait for bytes");
  try {
    for (MPI_Request& request : requests)
      for (int polls = 0; !channel_.test(request); ++polls) context()->backoff.pause(polls);
  } catch (...) {
    channel_.give_up(requests);
    throw;
  }
}

}  // namespace annulus
