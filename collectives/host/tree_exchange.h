#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/host/exchange_schedule.h"
#include "collectives/host/tree_sum.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/channel.h"
#include "collectives/world/world.h"
#include "kernels/base/trace.h"

namespace annulus {

// Sums arrays over messages in shard-tree order, in the rounds of exchange_schedule.h. In a round, the elements are cut
// into a part per group member. A rank gets a part from the other members, sums it in tree order, as far as the tree
// allows, and holds only this part in later rounds. After the last round it has the sum over all ranks, and the rounds
// are repeated backwards to gather the parts. Three ranks in a single round:
//
//    rank 0     sends parts 1 and 2 to their ranks     sums part 0     sends the sum to ranks 1 and 2
//    rank 1     sends parts 0 and 2                    sums part 1     sends the sum to ranks 0 and 2
//    rank 2     sends parts 0 and 1                    sums part 2     sends the sum to ranks 0 and 1
//
// If each group has a single array, a rank sends 2(N-1)/N of it, as in a ring.
class TreeExchange {
 public:
  // `subtrees`: for each rank in this world, which has an array per subtree. `schedule`: see exchange_rounds().
  TreeExchange(const World& world, std::vector<std::vector<Range>> subtrees, std::size_t shards,
               std::shared_ptr<AllReduceContext> context, const std::vector<ExchangeRound>& schedule);

  // Sums all ranks' arrays, each with sum.size() floats, into `sum`, which may be one of the arrays. `own`: this rank's
  // arrays. REQUIRES: every rank calls it with the same size.
  void run(std::span<const float* const> own, std::span<float> sum);

  std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Round {
    std::vector<std::size_t> ranks;   // in this rank's group
    std::size_t own;                  // this rank's number among them
    std::vector<std::size_t> arrays;  // number of arrays per member
    TreeSum tree;
    Range held{};  // the elements that they divide
    HostArray<float> arrived{}, sums{};

    Range part(std::size_t member) const;
    template <class Act>
    void each_other(const Act& act) const;
  };
  void reduce(Round& round, std::span<float> sum);
  void gather(const Round& round, std::span<float> sum);

  void send(std::span<const float> values, std::size_t to);
  void receive(std::span<float> values, std::size_t from);
  void complete_exchange();

  // The messages of an exchange that is not complete.
  struct Pending {
    std::vector<MPI_Request> requests;
    std::vector<std::size_t> peers;
  };
  void complete(Pending& pending);

  Channel channel_;
  std::shared_ptr<AllReduceContext> context_;
  std::vector<int> ranks_in_job_;
  std::vector<Round> rounds_;
  std::size_t exchange_ = 0;          // in this all-reduce, which has two for each round
  std::vector<const float*> arrays_;  // this rank's arrays, of the elements that it holds
  std::vector<const float*> from_;    // each member's arrays, as they arrived
  Pending receives_, sends_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace annulus
