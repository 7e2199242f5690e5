#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/host/tree_sum.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/channel.h"
#include "collectives/world/world.h"
#include "kernels/base/trace.h"

namespace annulus {

// Sums arrays over messages in the order of the tree of shards. An array is cut into one chunk for each rank, which
// gets it from all others, sums it in the tree's order, and sends the sum to all others:
//
//    rank 0     sends chunks 1 and 2 to their ranks     sums chunk 0     sends the sum to ranks 1 and 2
//    rank 1     sends chunks 0 and 2                    sums chunk 1     sends the sum to ranks 0 and 2
//    rank 2     sends chunks 0 and 1                    sums chunk 2     sends the sum to ranks 0 and 1
//
// If each rank has one array, it sends 2(N-1)/N of it, as in a ring, but in two rounds of N-1 messages at a time.
class TreeExchange {
 public:
  // `subtrees`: of each rank of this world; it has an array for each.
  TreeExchange(const World& world, std::vector<std::vector<Range>> subtrees, std::size_t shards,
               std::shared_ptr<AllReduceContext> context);

  // Writes the sum of all ranks' arrays, each of sum.size() floats, to `sum`, which may be one of them. `own`: this
  // rank's arrays. REQUIRES: every rank calls it with the same size.
  void run(std::span<const float* const> own, std::span<float> sum);

  std::uint64_t bytes_sent() const { return bytes_sent_; }
  void record_to(TraceLane* lane) { lane_ = lane; }

 private:
  void send(std::span<const float> values, std::size_t to);
  void receive(std::span<float> values, std::size_t from);
  void complete_round(std::size_t round);

  // Of this round.
  struct Pending {
    std::vector<MPI_Request> requests;
    std::vector<std::size_t> peers;
  };
  void complete(Pending& pending);

  Channel channel_;
  std::shared_ptr<AllReduceContext> context_;
  std::size_t rank_, size_;
  std::vector<int> ranks_in_job_;
  std::vector<std::vector<Range>> subtrees_;
  TreeSum tree_;
  Pending receives_, sends_;
  HostArray<float> arrived_;
  std::vector<const float*> from_;  // the arrays of each rank in arrived_, one after the other
  std::uint64_t bytes_sent_ = 0;
  TraceLane* lane_ = nullptr;
};

}  // namespace annulus
