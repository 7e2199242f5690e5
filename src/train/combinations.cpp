#include "src/train/combinations.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/error.h"

namespace annulus {
namespace {

// A feature, as users name it.
struct Feature {
  const char* name;
  bool (*used)(const TrainOptions&);
};

constexpr Feature kShards{"--shards", [](const TrainOptions& o) { return o.shards > 0; }};
constexpr Feature kSurvive{"--survive", [](const TrainOptions& o) { return o.survival.on; }};
constexpr Feature kSurviveAlone{"--survive without --shards",
                                [](const TrainOptions& o) { return o.survival.on && o.shards == 0; }};
constexpr Feature kVerify{"--verify", [](const TrainOptions& o) { return o.survival.verify.value_or(false); }};
constexpr Feature kAccumulate{"--accumulate", [](const TrainOptions& o) { return o.accumulate > 1; }};
constexpr Feature kSyncBatchNorm{"--sync-batch-norm", [](const TrainOptions& o) { return o.sync_batch_norm; }};
constexpr Feature kDefer{"--defer", [](const TrainOptions& o) { return o.buckets.deferred > 0; }};
constexpr Feature kClipNorm{"--clip-norm", [](const TrainOptions& o) { return o.clip_norm > 0; }};
constexpr Feature kSkipNotFinite{"--skip-not-finite", [](const TrainOptions& o) { return o.skip_not_finite > 0; }};
constexpr Feature kEma{"--ema", [](const TrainOptions& o) { return o.ema > 0; }};
constexpr Feature kLookahead{"--lookahead", [](const TrainOptions& o) { return o.lookahead.every > 0; }};
constexpr Feature kLars{"--optimizer lars", [](const TrainOptions& o) { return o.optimizer.kind == "lars"; }};
constexpr Feature kShardedLars{"--optimizer lars with --strategy sharded", [](const TrainOptions& o) {
                                 return kLars.used(o) && std::holds_alternative<Sharded>(o.strategy);
                               }};
constexpr Feature kMuon{"--optimizer muon", [](const TrainOptions& o) { return o.optimizer.kind == "muon"; }};
constexpr Feature kShardedMuon{"--optimizer muon with --strategy sharded", [](const TrainOptions& o) {
                                 return kMuon.used(o) && std::holds_alternative<Sharded>(o.strategy);
                               }};
constexpr Feature kWire{"--wire", [](const TrainOptions& o) { return o.wire != "fp32"; }};
constexpr Feature kWireBf16{"--wire bf16", [](const TrainOptions& o) { return o.wire == "bf16"; }};
constexpr Feature kWireFp16{"--wire fp16", [](const TrainOptions& o) { return o.wire == "fp16"; }};
constexpr Feature kAllReduce{"--all-reduce", [](const TrainOptions& o) { return o.all_reduce != "auto"; }};
constexpr Feature kGpu{"--device cuda", [](const TrainOptions& o) { return o.device.device == "cuda"; }};
constexpr Feature kFp16{"--precision fp16", [](const TrainOptions& o) { return o.device.precision == "fp16"; }};

constexpr std::size_t kStrategies = std::variant_size_v<StrategyOptions>;
// In the order of StrategyOptions.
constexpr std::array<const char*, kStrategies> kNames{"synchronous", "sharded", "--pipeline", "local", "async"};

// A feature that some strategies refuse.
struct Row {
  const Feature& feature;
  std::array<const char*, kStrategies> refusals;  // reasons; null: the strategy supports it
  const char* instead = "remove it";
};

constexpr const char* kNotYet = "this is not implemented yet";
constexpr const char* kOnRanks = "results would depend on the number of ranks";
constexpr const char* kOwnPace = "its ranks do not compute in step";
constexpr const char* kApart = "its ranks have different weights within a round";
constexpr const char* kOtherParts = "its ranks have different parts of the sums and states";
constexpr const char* kParts = "the parts of a round are its updates";
constexpr const char* kNeedsShards = "it requires --shards, which does not go with this, either";
constexpr const char* kAveraged = "the ranks' weights are brought together in rounds already";
constexpr const char* kNoSteps = "it all-reduces no gradients in steps";

constexpr std::array kRows{
    Row{kShards, {nullptr, "a sum of shards in a tree has no reduce-scatter", kNotYet, kNoSteps, kNoSteps}},
    Row{kSurvive, {nullptr, kNeedsShards, kNeedsShards, nullptr, nullptr}},
    Row{kSurviveAlone, {kOnRanks, kOnRanks, kOnRanks, nullptr, nullptr}, "add --shards N"},
    Row{kVerify, {nullptr, kOtherParts, kNotYet, kApart, kApart}},
    Row{kAccumulate, {nullptr, nullptr, nullptr, kParts, kParts}},
    Row{kSyncBatchNorm, {nullptr, nullptr, kNotYet, kOwnPace, kOwnPace}},
    Row{kDefer, {nullptr, nullptr, kNotYet, kNoSteps, kNoSteps}},
    Row{kClipNorm, {nullptr, nullptr, nullptr, nullptr, "no rank has all gradients of a step"}},
    Row{kSkipNotFinite, {nullptr, nullptr, kNotYet, "ranks update by themselves", "ranks update by themselves"}},
    Row{kLars, {nullptr, nullptr, nullptr, nullptr, "owners update parts of layers"}},
    Row{kMuon, {nullptr, nullptr, nullptr, nullptr, "owners update parts of layers"}},
    Row{kLookahead, {nullptr, nullptr, nullptr, kAveraged, kAveraged}},
    Row{kWireBf16, {nullptr, nullptr, nullptr, nullptr, "ranks push and pull fp32"}},
    Row{kWireFp16,
        {nullptr, nullptr, nullptr, "differences of weights are too small for fp16", "ranks push and pull fp32"}},
};

// An option that only some strategies have.
struct OwnOption {
  const char* name;
  bool (*given)(const StrategyChoice&);
  std::array<bool, kStrategies> belongs;
};

constexpr std::array kOwnOptions{
    OwnOption{"--sync-every",
              [](const StrategyChoice& c) { return c.sync_every != kDefaultRound; },
              {false, false, false, true, true}},
    OwnOption{"--outer", [](const StrategyChoice& c) { return c.outer != Local{}.outer; }, {false, false, false, true}},
    OwnOption{"--staleness",
              [](const StrategyChoice& c) { return c.staleness != Async{}.staleness; },
              {false, false, false, false, true}},
    OwnOption{"--servers", [](const StrategyChoice& c) { return c.servers > 0; }, {false, false, false, false, true}},
};

// Two features that exclude each other, with any strategy.
struct Pair {
  const Feature &one, &other;
  const char* reason;
  const char* remedy = "remove one of them";
};

constexpr const char* kOwnOrder = "it sums in an order of its own";
constexpr const char* kAllGradients = "the update needs all gradients of a step, and some are deferred";

constexpr std::array kPairs{
    Pair{kShards, kAccumulate, "shards are computed one by one anyway", "remove it, or give more --shards"},
    Pair{kShards, kSyncBatchNorm, "batch norm needs all ranks within a pass, but shards are computed one by one"},
    Pair{kShards, kAllReduce, kOwnOrder, "remove --all-reduce"},
    Pair{kShards, kWire, kOwnOrder, "remove --wire"},
    Pair{kSurvive, kAllReduce, kOwnOrder, "remove --all-reduce"},
    Pair{kSurvive, kWire, kOwnOrder, "remove --wire"},
    Pair{kShards, kGpu, kNotYet, "use --device cpu"},
    Pair{kSurvive, kGpu, kNotYet, "use --device cpu"},
    Pair{kVerify, kSkipNotFinite, "a flipped bit would make ranks skip different updates"},
    Pair{kSkipNotFinite, kGpu, kNotYet, "use --device cpu"},
    // Means and variances are differences of large sums.
    Pair{kSyncBatchNorm, kWire, "statistics need fp32"},
    Pair{kEma, kLookahead, "both keep an average of the weights"},
    Pair{kDefer, kClipNorm, kAllGradients},
    Pair{kDefer, kShardedLars, kAllGradients},
    Pair{kDefer, kShardedMuon, kAllGradients},
    Pair{kDefer, kFp16, kAllGradients},
};

// These need evaluations.
constexpr std::array kEvaluated{
    Feature{"--validation", [](const TrainOptions& o) { return !o.data.validation.empty(); }},
    Feature{"--until", [](const TrainOptions& o) { return o.until.has_value(); }},
    Feature{"--patience", [](const TrainOptions& o) { return o.patience > 0; }},
    Feature{"--schedule plateau", [](const TrainOptions& o) { return o.schedule.kind == "plateau"; }},
    Feature{"--best-by", [](const TrainOptions& o) { return o.best_by.has_value(); }},
    Feature{"--eval-steps", [](const TrainOptions& o) { return o.evaluation_steps > 0; }},
    Feature{"--export-best", [](const TrainOptions& o) { return o.on_complete != nullptr; }},
};

std::string strategy_name(std::size_t strategy) {
  return kNames[strategy][0] == '-' ? kNames[strategy] : fmt::format("--strategy {}", kNames[strategy]);
}

// "--strategy local and async", "--strategy synchronous, sharded and local"
template <class Holds>
std::string names_of(const Holds& holds, const char* last) {
  std::vector<std::string> names;
  for (std::size_t strategy = 0; strategy < kStrategies; ++strategy)
    if (kNames[strategy][0] != '-' && holds(strategy)) names.emplace_back(kNames[strategy]);
  const std::string end = names.back();
  names.pop_back();
  return fmt::format("--strategy {}{}{}", fmt::join(names, ", "), names.empty() ? "" : fmt::format(" {} ", last), end);
}

}  // namespace

void check_combinations(const TrainOptions& options) {
  const std::size_t strategy = options.strategy.index();
  for (const Row& row : kRows)
    if (row.refusals[strategy] != nullptr && row.feature.used(options))
      fail("{} does not support {}, because {}: {}, or use {}", strategy_name(strategy), row.feature.name,
           row.refusals[strategy], row.instead,
           names_of([&row](std::size_t s) { return row.refusals[s] == nullptr; }, "or"));
  for (const Pair& pair : kPairs)
    if (pair.one.used(options) && pair.other.used(options))
      fail("{} does not go with {}, because {}: {}", pair.one.name, pair.other.name, pair.reason, pair.remedy);
  if (const std::string need = need_of_evaluation(options); !need.empty() && !options.evaluate_every)
    fail("--eval-every none does not go with {}, which needs evaluations: remove one of them", need);
}

bool supports_verify(const TrainOptions& options) {
  const bool refused = std::ranges::any_of(kRows, [&](const Row& row) {
    return &row.feature == &kVerify && row.refusals[options.strategy.index()] != nullptr;
  });
  return !refused && std::ranges::none_of(
                         kPairs, [&](const Pair& pair) { return &pair.one == &kVerify && pair.other.used(options); });
}

std::string need_of_evaluation(const TrainOptions& options) {
  const auto* need = std::ranges::find_if(kEvaluated, [&](const Feature& feature) { return feature.used(options); });
  return need == kEvaluated.end() ? "" : need->name;
}

void check_own_options(const StrategyChoice& choice) {
  if (choice.pipeline > 1 && choice.name != kNames.front())
    fail("--pipeline does not support --strategy {}, because {}: remove one of them", choice.name, kNotYet);
  const std::size_t strategy = static_cast<std::size_t>(
      std::ranges::find(kNames, choice.pipeline > 1 ? "--pipeline" : std::string_view(choice.name)) - kNames.begin());
  for (const OwnOption& option : kOwnOptions)
    if (!option.belongs.at(strategy) && option.given(choice))
      fail("{} belongs to {}, and this is {}", option.name,
           names_of([&option](std::size_t s) { return option.belongs[s]; }, "and"), kNames[strategy]);
}

namespace {

std::string in_ticks(const std::string& name) {
  return name.starts_with('-') ? fmt::format("`{}`", name) : name;
}

// A table row; the columns fit all cells.
std::string row(const std::string& name, const std::array<std::string, kStrategies>& cells) {
  return fmt::format("| {:28} | {:11} | {:7} | {:12} | {:5} | {:5} |\n", name, cells[0], cells[1], cells[2], cells[3],
                     cells[4]);
}

template <class CellOf>
std::string row_of(const std::string& name, const CellOf& cell_of) {
  std::array<std::string, kStrategies> cells;
  for (std::size_t strategy = 0; strategy < kStrategies; ++strategy) cells[strategy] = cell_of(strategy);
  return row(in_ticks(name), cells);
}

// The reasons of a row, each with the strategies that have it: "sharded: ...; local, async: ...".
std::string reasons_of(const Row& row) {
  std::vector<std::string> texts;
  for (std::size_t strategy = 0; strategy < kStrategies; ++strategy) {
    const std::string reason = row.refusals[strategy] == nullptr ? "" : row.refusals[strategy];
    if (reason.empty()) continue;
    if (!texts.empty() && texts.back().ends_with(": " + reason))
      texts.back().insert(texts.back().find(": "), ", " + in_ticks(kNames[strategy]));
    else
      texts.push_back(fmt::format("{}: {}", in_ticks(kNames[strategy]), reason));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace

std::string combinations_page() {
  std::string text =
      "# What goes with what\n\nThe table that refuses at start (`combinations.cpp`), written by "
      "`combinations_test`.\n\n"
      "## Features and strategies\n\n";
  text += row_of("", [](std::size_t s) { return in_ticks(kNames[s]); });
  text += fmt::format("|{:-<30}|{:-<13}|{:-<9}|{:-<14}|{:-<7}|{:-<7}|\n", "", "", "", "", "", "");
  for (const Row& one : kRows)
    text += row_of(one.feature.name, [&one](std::size_t s) { return one.refusals[s] == nullptr ? "yes" : "no"; });
  for (const OwnOption& option : kOwnOptions)
    text += row_of(option.name, [&option](std::size_t s) { return option.belongs[s] ? "yes" : "-"; });
  text += "\n## Why not\n\n";
  for (const Row& one : kRows) text += fmt::format("- `{}`: {}.\n", one.feature.name, reasons_of(one));
  text += "\n## With any strategy\n\nThese exclude each other:\n\n";
  for (const Pair& pair : kPairs)
    text += fmt::format("- `{}` and `{}`: {}.\n", pair.one.name, pair.other.name, pair.reason);
  std::vector<std::string> evaluated;
  for (const Feature& feature : kEvaluated) evaluated.push_back(in_ticks(feature.name));
  text += fmt::format("- `--eval-every none` and {}: these need evaluations.\n", fmt::join(evaluated, ", "));
  return text;
}

}  // namespace annulus
