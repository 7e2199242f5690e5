#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

namespace annulus {

// TreeExchange's rounds as pure arithmetic: recursive halving along the shard tree, but in groups of any size. In a
// round, a group's ranks divide the elements that they hold among them. Eight ranks in rounds of two:
//
//    round 1    0 1    2 3    4 5    6 7      a rank then holds half the elements, summed over two ranks
//    round 2    0 2    1 3    4 6    5 7      a quarter, summed over four
//    round 3    0 4    1 5    2 6    3 7      an eighth, summed over all
//
// Neighbours come first, as in the tree. Source, for groups with two ranks: R. Thakur, R. Rabenseifner and W. Gropp,
// "Optimization of collective communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
struct ExchangeRound {
  std::size_t members;   // ranks in a group
  std::size_t distance;  // between neighbours in a group; the previous rounds' groups are blocks of `distance` ranks

  std::size_t number(std::size_t rank) const { return rank / distance % members; }  // in the group
  std::size_t rank(std::size_t member, std::size_t other) const {                   // of the group's member `other`
    return member - number(member) * distance + other * distance;
  }
  bool operator==(const ExchangeRound&) const = default;
};

// A round costs the network's latency, and a message costs both ranks some processor time. So fewer than 64 ranks
// exchange in a single round. From 64 on, ranks first form blocks of 8, or the largest power of two that divides their
// number: if shards = ranks x 2^k, a block's shards are a subtree, and no rank sends more than in a single round.
//
// Time / time in a single round, with a rank per simulated host (tests/hosts), 1 Gbit/s links, all on two busy cores,
// medians for 4 KiB, 64 KiB and 1 MiB:
//
//    hosts   rounds of two      fewer rounds
//        4   1.1  1.2  1.3
//        8   1.3  1.3  1.4
//       16   1.4  1.4  1.7      4 x 4   1.2  1.3  1.3
//       32   1.4  1.2  2.0      8 x 4   1.1  1.1  1.4
//       40                      8 x 5   1.1  1.0  1.7
//       48                      8 x 6   0.8  0.9  1.6
//       64                      8 x 8   0.8  0.8  0.9
inline std::vector<ExchangeRound> exchange_rounds(std::size_t ranks) {
  constexpr std::size_t kMany = 64, kBlock = 8;
  std::vector<ExchangeRound> rounds;
  std::size_t distance = 1, blocks = ranks;
  while (blocks >= kMany && blocks % 2 == 0) {
    rounds.push_back({std::gcd(blocks, kBlock), distance});
    distance *= rounds.back().members;
    blocks /= rounds.back().members;
  }
  rounds.push_back({blocks, distance});
  return rounds;
}

}  // namespace annulus
