#include "collectives/host/tree_exchange.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <utility>

#include "collectives/ring/ring_partition.h"

namespace annulus {

TreeExchange::TreeExchange(const World& world, std::vector<std::vector<Range>> subtrees, std::size_t shards,
                           std::shared_ptr<AllReduceContext> context, const std::vector<ExchangeRound>& schedule)
    : channel_(world.channel()), context_(std::move(context)) {
  for (int rank = 0; rank < world.size(); ++rank) ranks_in_job_.push_back(world.rank_in_job(rank));
  const auto rank = static_cast<std::size_t>(world.rank());
  for (const auto& step : schedule) {  // `subtrees`: for each block of step.distance ranks
    std::vector<std::vector<Range>> joined;
    for (std::size_t first = 0; first < subtrees.size(); first += step.members) {
      const std::vector members(&subtrees[first], &subtrees[first] + step.members);
      TreeSum tree(members, shards);
      joined.push_back(tree.sums());
      if (rank / step.distance / step.members != first / step.members) continue;
      Round& round = rounds_.emplace_back(Round{{}, step.number(rank), {}, std::move(tree)});
      for (std::size_t member = 0; member < step.members; ++member) {
        round.ranks.push_back(step.rank(rank, member));
        round.arrays.push_back(members[member].size());
      }
    }
    subtrees = std::move(joined);
  }
}

void TreeExchange::run(std::span<const float* const> own, std::span<float> sum) {
  exchange_ = 0;
  arrays_.assign(own.begin(), own.end());
  Range held{0, sum.size()};
  for (Round& round : rounds_) {
    round.held = held;
    held = round.part(round.own);
    reduce(round, sum);
  }
  for (const Round& round : std::views::reverse(rounds_)) gather(round, sum);
}

Range TreeExchange::Round::part(std::size_t member) const {
  const Range part = RingPartition::chunk_of(held.size(), ranks.size(), member);
  return {held.begin + part.begin, held.begin + part.end};
}

// Begins with the next member, so that not all act on the same rank.
template <class Act>
void TreeExchange::Round::each_other(const Act& act) const {
  for (std::size_t distance = 1; distance < ranks.size(); ++distance) act((own + distance) % ranks.size());
}

void TreeExchange::reduce(Round& round, std::span<float> sum) {
  const std::size_t begin = round.held.begin;
  const Range own = round.part(round.own);
  const std::size_t count = own.size();
  float* to = round.arrived.first(std::reduce(round.arrays.begin(), round.arrays.end()) * count).data();
  from_.resize(round.ranks.size());
  round.each_other([&](std::size_t member) {
    from_[member] = to;
    for (std::size_t number = 0; number < round.arrays[member]; ++number, to += count)
      receive({to, count}, round.ranks[member]);
  });
  round.each_other([&](std::size_t member) {
    const Range part = round.part(member);
    for (const float* array : arrays_) send({array + (part.begin - begin), part.size()}, round.ranks[member]);
  });
  complete_exchange();

  const std::size_t sums = round.tree.sums().size();
  float* const results = sums == 1 ? sum.data() + own.begin : round.sums.first(sums * count).data();
  round.tree.run(
      count,
      [&](std::size_t member, std::size_t number) {
        return member == round.own ? arrays_[number] + (own.begin - begin) : from_[member] + number * count;
      },
      [&](std::size_t number, const Range& block, const float* values) {
        std::copy_n(values, block.size(), results + number * count + block.begin);
      });
  arrays_.clear();
  for (std::size_t number = 0; number < sums; ++number) arrays_.push_back(results + number * count);
}

void TreeExchange::gather(const Round& round, std::span<float> sum) {
  const auto part = [&](std::size_t member) {
    return sum.subspan(round.part(member).begin, round.part(member).size());
  };
  round.each_other([&](std::size_t member) { receive(part(member), round.ranks[member]); });
  round.each_other([&](std::size_t member) { send(part(round.own), round.ranks[member]); });
  complete_exchange();
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

void TreeExchange::complete_exchange() {
  const TraceSpan span(context_->lane, "wait for bytes");
  context_->progress.enter({"tree exchange", ++exchange_, 2 * rounds_.size()});
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
