#include "collectives/host/tree_exchange.h"

#include <algorithm>
#include <utility>

#include "collectives/ring/ring_partition.h"

namespace annulus {

TreeExchange::TreeExchange(const World& world, std::vector<std::vector<Range>> subtrees, std::size_t shards,
                           std::shared_ptr<AllReduceContext> context)
    : channel_(world.channel()),
      context_(std::move(context)),
      rank_(static_cast<std::size_t>(world.rank())),
      size_(static_cast<std::size_t>(world.size())),
      subtrees_(std::move(subtrees)),
      tree_(subtrees_, shards),
      from_(size_) {
  for (int rank = 0; rank < world.size(); ++rank) ranks_in_job_.push_back(world.rank_in_job(rank));
}

void TreeExchange::run(std::span<const float* const> own, std::span<float> sum) {
  const auto chunk = [&](std::size_t rank) { return RingPartition::chunk_of(sum.size(), size_, rank); };
  const auto part = [&](std::size_t rank) { return sum.subspan(chunk(rank).begin, chunk(rank).size()); };
  const auto each_other = [&](const auto& act) {  // beginning with the next one, so that not all act on the same rank
    for (std::size_t distance = 1; distance < size_; ++distance) act((rank_ + distance) % size_);
  };
  const std::size_t count = chunk(rank_).size();
  std::size_t arrays = 0;
  for (const auto& subtrees : subtrees_) arrays += subtrees.size();
  float* to = arrived_.first(arrays * count).data();
  each_other([&](std::size_t rank) {
    from_[rank] = to;
    for (std::size_t number = 0; number < subtrees_[rank].size(); ++number, to += count) receive({to, count}, rank);
  });
  each_other([&](std::size_t rank) {
    for (const float* array : own) send({array + chunk(rank).begin, chunk(rank).size()}, rank);
  });
  complete_round(1);

  tree_.run(
      count,
      [&](std::size_t rank, std::size_t number) {
        return rank == rank_ ? own[number] + chunk(rank_).begin : from_[rank] + number * count;
      },
      [&](std::size_t, const Range& block, const float* values) {
        std::copy_n(values, block.size(), part(rank_).data() + block.begin);
      });

  each_other([&](std::size_t rank) { receive(part(rank), rank); });
  each_other([&](std::size_t rank) { send(part(rank_), rank); });
  complete_round(2);
}

void TreeExchange::send(std::span<const float> values, std::size_t to) {
  channel_.start_sending(std::as_bytes(values), static_cast<int>(to), sends_.requests.emplace_back(MPI_REQUEST_NULL));
  sends_.peers.push_back(to);
  bytes_sent_ += values.size_bytes();
}

void TreeExchange::receive(std::span<float> values, std::size_t from) {
  channel_.start_receiving(std::as_writable_bytes(values), static_cast<int>(from),
                           receives_.requests.emplace_back(MPI_REQUEST_NULL));
  receives_.peers.push_back(from);
}

void TreeExchange::complete_round(std::size_t round) {
  const TraceSpan span(lane_, "wait for bytes");
  context_->progress.enter({"tree exchange", round, 2});
  try {
    for (Pending* pending : {&receives_, &sends_}) complete(*pending);
  } catch (...) {
    channel_.withdraw(receives_.requests);
    channel_.give_up(sends_.requests);
    throw;
  }
}

void TreeExchange::complete(Pending& pending) {
  for (std::size_t i = 0; i < pending.requests.size(); ++i) {
    context_->progress.await(ranks_in_job_[pending.peers[i]]);
    for (int polls = 0; !channel_.test(pending.requests[i]); ++polls) context_->backoff.pause(polls);
  }
  pending.requests.clear();
  pending.peers.clear();
}

}  // namespace annulus
