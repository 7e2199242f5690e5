#include "collectives/host/exchange_schedule.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

namespace annulus {

namespace {

using Ranks = std::multiset<std::size_t>;
using Rounds = std::vector<ExchangeRound>;

// All ranks take each round simultaneously, on sets of rank numbers instead of sums. Elements are as many as ranks.
void check_sums(std::size_t ranks, const Rounds& rounds) {
  std::vector<std::map<std::size_t, Ranks>> sums(ranks);  // of each rank, by element
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (std::size_t element = 0; element < ranks; ++element) sums[rank][element] = {rank};
  for (const ExchangeRound& round : rounds) {
    const auto before = sums;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sums[rank].clear();
      REQUIRE(round.rank(rank, round.number(rank)) == rank);
      for (std::size_t number = 0; number < round.members; ++number) {
        const std::size_t member = round.rank(rank, number);
        REQUIRE(round.number(member) == number);
        std::size_t place = 0;
        for (const auto& [element, sum] :
             before[member])  // a rank takes its part of the elements that all members hold
          if (place++ * round.members / before[member].size() == round.number(rank))
            sums[rank][element].insert(sum.begin(), sum.end());
      }
      const std::size_t block = round.distance * round.members, first = rank / block * block;
      Ranks expected;
      for (std::size_t member = first; member < first + block; ++member) expected.insert(member);
      for (const auto& [element, sum] : sums[rank]) REQUIRE(sum == expected);
    }
  }
  std::set<std::size_t> complete;
  for (const auto& of_rank : sums) {
    REQUIRE(of_rank.size() == 1);
    complete.insert(of_rank.begin()->first);
  }
  REQUIRE(complete.size() == ranks);
}

}  // namespace

TEST_CASE("the rounds of a number of ranks") {
  for (std::size_t ranks = 2; ranks < 64; ++ranks) CHECK(exchange_rounds(ranks) == Rounds{{ranks, 1}});
  CHECK(exchange_rounds(65) == Rounds{{65, 1}});
  CHECK(exchange_rounds(66) == Rounds{{2, 1}, {33, 2}});
  CHECK(exchange_rounds(72) == Rounds{{8, 1}, {9, 8}});
  CHECK(exchange_rounds(64) == Rounds{{8, 1}, {8, 8}});
  CHECK(exchange_rounds(256) == Rounds{{8, 1}, {32, 8}});
  CHECK(exchange_rounds(1024) == Rounds{{8, 1}, {8, 8}, {16, 64}});
}

TEST_CASE("rounds of two pair ranks as documented") {
  const Rounds rounds{{2, 1}, {2, 2}, {2, 4}};
  std::vector<std::size_t> partners;
  for (const ExchangeRound& round : rounds) partners.push_back(round.rank(5, 1 - round.number(5)));
  CHECK(partners == std::vector<std::size_t>{4, 7, 1});
}

TEST_CASE("in any rounds, each rank ends with a part of the sum of all ranks") {
  for (std::size_t ranks = 2; ranks <= 80; ++ranks) check_sums(ranks, exchange_rounds(ranks));
  check_sums(8, {{2, 1}, {2, 2}, {2, 4}});
  check_sums(12, {{3, 1}, {2, 3}, {2, 6}});
}

}  // namespace annulus
