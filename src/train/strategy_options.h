#pragma once

#include <cstddef>
#include <string>
#include <variant>

#include "src/train/interval.h"

namespace annulus {

constexpr Interval kDefaultRound{Interval::Unit::steps, 20};

// The strategies of `annulus train`, each with the options that only it has.
struct Synchronous {};
struct Sharded {};
struct Pipeline {
  std::size_t stages = 2;  // each rank computes one
};
struct Local {
  Interval sync_every = kDefaultRound;  // length of a round: steps or seconds
  std::string outer = "average";        // optimizer of the common weights, see LocalStep
};
struct Async {
  Interval sync_every = kDefaultRound;
  // The most steps that a rank may be ahead of the slowest one. With 4, as momentum makes old gradients larger,
  // training collapses if ranks outnumber processors.
  std::size_t staleness = 1;
  std::size_t servers = 0;  // the last ranks, which only serve; 0: all ranks compute and serve
};

using StrategyOptions = std::variant<Synchronous, Sharded, Pipeline, Local, Async>;

// A strategy as users write it: the name, and the options of all strategies.
struct StrategyChoice {
  std::string name = "synchronous";
  std::size_t pipeline = 1;  // stages; more than 1 is a separate strategy
  Interval sync_every = kDefaultRound;
  std::size_t staleness = Async{}.staleness;
  std::size_t servers = 0;
  std::string outer = Local{}.outer;
};

// Throws Error if an option was given that belongs to another strategy.
StrategyOptions make_strategy(const StrategyChoice& choice);

Interval parse_round(const std::string& text);  // only in steps or seconds; throws Error

std::size_t servers_of(const StrategyOptions& options);
std::size_t stages_of(const StrategyOptions& options);  // 1 if every rank has the whole network

}  // namespace annulus
