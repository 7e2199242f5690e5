#include <map>

#include "src/cli/choices.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/cli/option_kinds.h"
#include "src/cli/train_options.h"
#include "src/step/local_step.h"
#include "src/step/strategies.h"
#include "src/train/interval.h"

namespace annulus {

void add_strategy_options(CLI::App& command, StrategyChoice& o) {
  const std::string group = "All-reduce";
  std::vector<std::string> strategies = strategy_names();
  strategies.insert(strategies.begin(), "auto");
  command
      .add_option(
          "--strategy", o.name,
          "synchronous, or auto: all ranks make the same update after every step; sharded: the same bits, but each "
          "rank updates a part of the weights, and has only that part of the optimizer's state and of --ema's "
          "average (ZeRO-1); local: each updates weights of its own, which are averaged every --sync-every (local "
          "SGD, DiLoCo), for slow networks and unequal ranks; async: ranks push gradients to the owners of weights "
          "and pull these, at most --staleness steps ahead of the slowest (parameter server), for unequal ranks")
      ->transform(CLI::Transformer(std::map<std::string, std::string>{{"auto", "synchronous"}}).description(""))
      ->check(one_of(strategies))
      ->capture_default_str()
      ->group(group);
  add_parsed_option(command, "--sync-every", o.sync_every, parse_round,
                    "Length of a round (local, async), after which ranks meet: steps, such as 20, or a time, such as "
                    "2s, in which slower ranks have fewer samples")
      ->type_name("WHEN")
      ->default_str("20")
      ->group(group);
  command.add_option("--staleness", o.staleness, "Steps that a rank may be ahead of the slowest one (async); 0: none")
      ->transform(whole_number(0, 1000))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--servers", o.servers,
                  "Number of ranks, the last ones, that only keep and update weights (async); 0: every rank does both")
      ->transform(whole_number(0, 1'000'000))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--pipeline", o.pipeline,
          "Pipeline stages: each rank has one of N parts of the network, which are cut to take the same time; N "
          "must divide the number of ranks. --batch counts samples of N ranks together; their micro-batches are "
          "those of --accumulate")
      ->transform(whole_number(1))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--outer", o.outer,
                  "Update of the common weights after a round (local): average, or nesterov (momentum 0.5, rate 0.5)")
      ->check(one_of(outer_names()))
      ->capture_default_str()
      ->group(group);
}

void add_survival_options(CLI::App& command, SurvivalOptions& o) {
  const std::string group = "Lost ranks";
  command
      .add_flag("--survive", o.on,
                "Go on when ranks or hosts die, with the others; requires --shards, and then results are the same, or "
                "--strategy async or local; and scripts/launch or mpirun --enable-recovery")
      ->group(group);
  command.add_option("--min-ranks", o.min_ranks, "Ranks that must be left to go on; fewer write a checkpoint and stop")
      ->transform(whole_number(1))
      ->capture_default_str()
      ->group(group);
  command.add_option("--lost-after", o.lost_after, "Seconds without an answer after which a rank counts as lost")
      ->transform(number_from(0.2, 3600))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag_function(
          "--verify", [&o](std::int64_t count) { o.verify = count > 0; },
          "Find flipped bits: compare all sums of gradients between ranks in each step, and weights and optimizer "
          "states within 16 steps; a difference ends the run, or with --survive steps are repeated")
      ->check(one_of({"true", "false"}))
      ->default_str("if it takes at most 0.5 % of a step; --verify=false: never")
      ->group("Flipped bits");
}

}  // namespace annulus
