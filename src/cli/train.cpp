#include "src/train/train.h"
#include "collectives/all_reduce.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>

#include "kernels/base/error.h"
#include "src/apply/export_network.h"
#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/data/dataset.h"
#include "src/metrics/metrics_files.h"
#include "src/onnx/network_file.h"
#include "src/step/local_step.h"
#include "src/step/strategies.h"
#include "src/train/interval.h"

namespace annulus {
namespace {

// For tests; not shown in the help.
void add_fault_option(CLI::App& command, std::vector<Fault>& faults) {
  const auto parse = [&faults](const std::string& text) {
    try {
      faults.push_back(parse_fault(text));
    } catch (const Error& error) {
      throw CLI::ValidationError("--inject", error.what());
    }
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--inject", [parse](const std::vector<std::string>& texts) { std::ranges::for_each(texts, parse); })
      ->configurable(false)
      ->group("");
}

// An option whose value is a list, parsed one by one; "none" is an empty list.
template <class T, class Parse>
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<T>& values, const Parse& parse,
                             const std::string& help) {
  const auto parse_all = [&values, parse](const std::vector<std::string>& texts) {
    values.clear();
    if (texts != std::vector<std::string>{"none"}) std::ranges::transform(texts, std::back_inserter(values), parse);
  };
  return command.add_option_function<std::vector<std::string>>(name, parse_all, help)
      ->delimiter(',')
      ->default_str("none");
}

void add_rate_options(CLI::App& command, ScheduleOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Learning rate");
  };
  add("--lr-per", o.reference_batch,
      "Linear scaling rule: --lr is scaled by global batch / N, such as 256; 0: no scaling")
      ->transform(whole_number(0));
  add("--warmup", o.warmup, "Epochs of linear warm-up, such as 5 or 0.5")->transform(number_from(0));
  const auto parse_share = [&o](const std::string& text) {
    o.warmup_from.reset();
    if (text == "auto") return;
    o.warmup_from = parse_number("--warmup-from", text, number_from(0, 1));
  };
  command
      .add_option_function<std::string>("--warmup-from", parse_share,
                                        "Fraction of the rate at the start of warm-up; auto: 0, with --lr-per the "
                                        "fraction that gives --lr, with one-cycle "
                                        "1/25")
      ->type_name("SHARE")
      ->default_str("auto")
      ->group("Learning rate");
  add("--schedule", o.kind,
      "Schedule after warm-up:\n"
      "constant    unchanged\n"
      "step        lowered after --lr-steps\n"
      "cosine      falls along half a cosine, over all --epochs\n"
      "polynomial  falls as (1 - x)^power, over all --epochs\n"
      "one-cycle   cosine, and warm-up also along half a cosine, by default over 30 % of --epochs from 1/25 of the "
      "rate\n"
      "cyclic      rises and falls linearly every --lr-cycle epochs\n"
      "plateau     lowered when evaluations stop improving")
      ->check(one_of({"constant", "step", "cosine", "polynomial", "one-cycle", "cyclic", "plateau"}));
  add_list_option(
      command, "--lr-steps", o.steps,
      [](const std::string& text) { return parse_number("--lr-steps", text, number_above(0)); },
      "Epochs after which the rate is lowered, such as 30,60,80 (step)")
      ->type_name("EPOCH")
      ->group("Learning rate");
  add("--lr-factor", o.factor, "Factor applied to the rate after each of --lr-steps (step), or on a plateau")
      ->transform(number_above(0));
  add("--lr-end", o.end,
      "Final rate (cosine, polynomial, one-cycle) or lowest rate (cyclic, plateau), not scaled with the global batch")
      ->transform(number_from(0));
  add("--lr-cycle", o.cycle, "Epochs of a cycle, such as 4 (cyclic)")->transform(number_from(0));
  add("--lr-patience", o.patience,
      "Evaluations without improvement to wait for; the next one lowers the rate (plateau)")
      ->transform(whole_number(0));
  add("--lr-power", o.power, "Exponent of the decay (1 - x)^power (polynomial)")->transform(number_above(0));
}

// "layer1=0.1". A pattern may contain further equals signs.
PatternValue parse_pattern_value(const std::string& option, const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw CLI::ValidationError(option, unexpected("PATTERN=NUMBER, such as layer1=0.1", text));
  return {text.substr(0, equals), static_cast<float>(parse_number(option, text.substr(equals + 1), number_from(0)))};
}

void add_fine_tuning_options(CLI::App& command, TrainOptions& o) {
  const std::string group = "Fine-tuning";
  command
      .add_option(
          "--weights", o.weights,
          "Initial weights: random, those of the ONNX file of --model (auto), or those of a .safetensors file, a "
          "checkpoint or a run's folder; a head with another number of classes remains random")
      ->type_name("FILE")
      ->capture_default_str()
      ->group(group);
  add_list_option(command, "--freeze", o.freeze, std::identity(),
                  "Layers or parameters that do not change, such as conv1,bn1,layer?.*.bn1 (* and ? match any text and "
                  "character)")
      ->type_name("PATTERN")
      ->group(group);
  const auto add_values = [&](const std::string& name, std::vector<PatternValue>& values, const std::string& help) {
    add_list_option(
        command, name, values, [name](const std::string& text) { return parse_pattern_value(name, text); }, help)
        ->type_name("PATTERN=NUMBER")
        ->group(group);
  };
  add_values("--lr-for", o.rate_factors, "Factors of --lr for layers or parameters, such as layer1=0.1,layer2=0.3");
  add_values("--weight-decay-for", o.weight_decays,
             "Weight decay of layers or parameters, such as fc=0.01; also applied to their biases");
  command.add_option("--head-lr", o.head_rate, "Factor of --lr for the head, the last layer with weights")
      ->transform(number_from(0))
      ->capture_default_str()
      ->group(group);
}

void add_optimizer_options(CLI::App& command, TrainOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Optimizer");
  };
  add("--optimizer", o.optimizer, "Optimizer: sgd, lars or adamw")->check(one_of({"sgd", "lars", "adamw"}));
  add("--momentum", o.momentum, "Momentum (sgd, lars)")->transform(number_from(0, 1));
  command.add_flag("--nesterov", o.nesterov, "Nesterov momentum (sgd)")->group("Optimizer");
  add("--weight-decay", o.weight_decay, "Weight decay; not applied to biases and batch norm")
      ->transform(number_from(0));
  add("--trust", o.trust, "Trust coefficient: a layer's rate is this times norm of weights / norm of gradient (lars)")
      ->transform(number_above(0));
  const auto parse_betas = [&o](const std::string& text) {
    const std::size_t comma = text.find(',');
    const auto beta = [](const std::string& part) {
      return static_cast<float>(parse_number("--adam-betas", part, number_from(0, 1)));
    };
    if (comma != std::string::npos) o.betas = {beta(text.substr(0, comma)), beta(text.substr(comma + 1))};
    if (comma == std::string::npos || std::ranges::any_of(o.betas, [](float one) { return one == 1; }))
      throw CLI::ValidationError(
          "--adam-betas",
          fmt::format("expected two numbers from 0 to below 1, such as 0.9,0.999, not {}", in_quotes(text)));
  };
  command
      .add_option_function<std::string>("--adam-betas", parse_betas, "Decay of the two moments, beta1,beta2 (adamw)")
      ->type_name("BETAS")
      ->default_str("0.9,0.999")
      ->group("Optimizer");
  add("--epsilon", o.epsilon, "Epsilon, added to the root of the second moment (adamw)")->transform(number_above(0));
  add("--clip-norm", o.clip_norm, "Maximum norm of the gradient over all parameters; 0: no clipping")
      ->transform(number_from(0));
  add("--ema", o.ema, "Decay, such as 0.9999, of a moving average of the weights, which is then evaluated; 0: none")
      ->transform(number_from(0, 0.9999999));
}

CLI::Option* add_interval_option(CLI::App& command, const std::string& name, Interval& interval,
                                 const std::string& help,
                                 const std::function<Interval(const std::string&)>& parse_text = parse_interval) {
  const auto parse = [&interval, name, parse_text](const std::string& text) {
    try {
      interval = parse_text(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(name, error.what());
    }
  };
  return command.add_option_function<std::string>(name, parse, help)->type_name("WHEN")->default_str("1epoch");
}

void add_strategy_options(CLI::App& command, TrainOptions& o) {
  const std::string group = "All-reduce";
  std::vector<std::string> strategies = strategy_names();
  strategies.insert(strategies.begin(), "auto");
  command
      .add_option(
          "--strategy", o.strategy,
          "synchronous, or auto: all ranks make the same update after every step; sharded: the same bits, but each "
          "rank updates a part of the weights, and has only that part of the optimizer's state and of --ema's "
          "average (ZeRO-1); local: each updates weights of its own, which are averaged every --sync-every (local "
          "SGD, DiLoCo), for slow networks and unequal ranks; async: ranks push gradients to the owners of weights "
          "and pull these, at most --staleness steps ahead of the slowest (parameter server), for unequal ranks")
      ->transform(CLI::Transformer(std::map<std::string, std::string>{{"auto", "synchronous"}}).description(""))
      ->check(one_of(strategies))
      ->capture_default_str()
      ->group(group);
  add_interval_option(command, "--sync-every", o.sync_every,
                      "Length of a round (local, async), after which ranks meet: steps, such as 20, or a time, such as "
                      "2s, in which slower ranks have fewer samples",
                      parse_round)
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
      .add_option("--outer", o.outer,
                  "Update of the common weights after a round (local): average, or nesterov (momentum 0.5, rate 0.5)")
      ->check(one_of(outer_names()))
      ->capture_default_str()
      ->group(group);
}

void add_metrics_options(CLI::App& command, MetricsOptions& o) {
  std::vector<std::string> choices = metrics_formats();
  choices.push_back("none");
  const auto parse = [&o](const std::vector<std::string>& names) {
    const bool has_none = std::ranges::find(names, "none") != names.end();
    if (has_none && names.size() > 1) throw CLI::ValidationError("--metrics", "none excludes other formats");
    o.formats = has_none ? std::vector<std::string>{} : names;
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--metrics", parse, "Formats of the metrics in --out: jsonl, csv, tensorboard, several of them, or none")
      ->delimiter(',')
      ->check(one_of(choices))
      ->type_name("FORMAT")
      ->default_str("jsonl")
      ->group("Metrics");
  command.add_option("--metrics-every", o.every, "Steps between metrics records")
      ->transform(whole_number(1))
      ->capture_default_str()
      ->group("Metrics");
}

// An option, and whether it is used.
struct UsedOption {
  bool used;
  std::string option;
};

std::optional<std::string> first_used(const std::vector<UsedOption>& options) {
  const auto first = std::ranges::find(options, true, &UsedOption::used);
  return first == options.end() ? std::nullopt : std::optional(first->option);
}

// Throws Error if options contradict each other or have no effect together.
void expect_sense(const TrainOptions& o) {
  const TrainOptions defaults;
  if (o.nesterov && o.optimizer != "sgd")
    fail("--nesterov belongs to --optimizer sgd, and this is {}: remove it, or give --nesterov=false", o.optimizer);
  if (o.trust != defaults.trust && o.optimizer != "lars")
    fail("--trust belongs to --optimizer lars, and this is {}", o.optimizer);
  if ((o.betas != defaults.betas || o.epsilon != defaults.epsilon) && o.optimizer != "adamw")
    fail("--adam-betas and --epsilon belong to --optimizer adamw, and this is {}", o.optimizer);
  if (o.momentum != defaults.momentum && o.optimizer == "adamw")
    fail("--momentum belongs to --optimizer sgd or lars, and this is adamw, which has --adam-betas");
  if (o.all_reduce == "none")
    fail(
        "--all-reduce none does not train; to measure the cost of communication, run: annulus bench step --all-reduce "
        "auto,none");
  // Means and variances are differences of large sums, for which 16 bits are not accurate enough.
  if (o.sync_batch_norm && o.wire != "fp32")
    fail("--sync-batch-norm all-reduces statistics over --wire, which must be fp32 and is {}: remove one of them",
         o.wire);
  if (o.shards > 0 && o.accumulate > 1)
    fail("--accumulate {}: shards are computed one by one anyway; remove it, or give more --shards", o.accumulate);
  if (o.shards > 0 && o.sync_batch_norm)
    fail(
        "--sync-batch-norm needs all ranks within a pass, but --shards computes shards one by one: remove one of them");
  if ((o.shards > 0 || o.survive) && (o.all_reduce != "auto" || o.wire != "fp32"))
    fail("{} sums in an order of its own: remove --all-reduce and --wire", o.shards > 0 ? "--shards" : "--survive");
  if (o.take_over && !o.resume) fail("--take-over requires --resume: add it");
  const bool local = o.strategy == "local", async = o.strategy == "async";
  if (o.survive && o.shards == 0 && !local && !async)
    fail(
        "--survive requires --shards, which makes results independent of the number of ranks: add --shards N, or use "
        "--strategy async or local");
  if (!o.survive && (o.min_ranks != defaults.min_ranks || o.lost_after != defaults.lost_after))
    fail("--min-ranks and --lost-after belong to --survive: add it, or remove them");
  if (o.strategy == "sharded" && o.shards > 0)
    fail("--strategy sharded needs a reduce-scatter, and the sum of --shards in a tree has none: remove one of them");
  if (local || async)
    if (const auto option = first_used({{o.shards > 0, "--shards"},
                                        {o.accumulate > 1, "--accumulate"},
                                        {o.buckets.deferred > 0, "--defer"},
                                        {o.sync_batch_norm, "--sync-batch-norm"},
                                        {async && o.clip_norm > 0, "--clip-norm"},
                                        {async && o.optimizer == "lars", "--optimizer lars"},
                                        {local && o.wire == "fp16", "--wire fp16"},
                                        {async && o.wire != "fp32", "--wire"}}))
      fail("--strategy {} does not support {}: remove it, or use --strategy synchronous", o.strategy, *option);
  if (!local && o.outer != defaults.outer) fail("--outer belongs to --strategy local, and this is {}", o.strategy);
  if (!async && (o.staleness != defaults.staleness || o.servers != defaults.servers))
    fail("--staleness and --servers belong to --strategy async, and this is {}", o.strategy);
  if (!local && !async && o.sync_every != defaults.sync_every)
    fail("--sync-every belongs to --strategy local and async, and this is {}", o.strategy);
  if (o.pipeline > 1)
    if (const auto option = first_used({{o.shards > 0, "--shards"},
                                        {o.strategy != "synchronous", "--strategy " + o.strategy},
                                        {o.sync_batch_norm, "--sync-batch-norm"},
                                        {o.buckets.deferred > 0, "--defer"}}))
      fail("--pipeline does not support {} yet: remove one of them", *option);
  if (o.clip_norm > 0 && o.buckets.deferred > 0)
    fail("--clip-norm needs all gradients of a step before its update, but --defer delays some: remove one of them");
  if (o.schedule.kind == "plateau" && o.patience > 0 && o.patience <= o.schedule.patience + 1)
    fail("--patience {} ends the run before --lr-patience {} lowers the rate: give a larger --patience", o.patience,
         o.schedule.patience);
  check(o.schedule, o.epochs);
}

// The options that most runs have, in the order of their use.
void add_main_options(CLI::App& command, TrainOptions& o) {
  command.add_option("--model", o.model, model_help())->check(network())->capture_default_str();
  add_pixels_option(command, o.pixels);
  add_data_option(command, o.data);
  command
      .add_option(
          "--validation", o.data.validation,
          "Data files to evaluate during training; default: the validation split of --data, else its test split")
      ->type_name("FILE");
  command.add_option("--out", o.out, "Folder of the run: checkpoints, results.json, config.toml, metrics")
      ->type_name("FOLDER")
      ->required();
  command.add_option("--epochs", o.epochs, "Passes over the training images")
      ->transform(whole_number(1, 1 << 30))
      ->capture_default_str();
  auto* batch =
      command.add_option("--batch", o.batch, "Batch size per rank")->transform(whole_number(1))->capture_default_str();
  command
      .add_option("--global-batch", o.global_batch,
                  "Batch size over all ranks, split as evenly as possible; replaces --batch")
      ->transform(whole_number(1))
      ->excludes(batch);
  command
      .add_option("--shards", o.shards,
                  "Same bits on any number of ranks: compute the global batch in N shards, distributed over the ranks, "
                  "and sum them in a fixed order; --batch is per shard, and --threads is 1 unless given; 0: off")
      ->transform(whole_number(0))
      ->capture_default_str();
  command.add_option("--lr", o.schedule.rate, "Learning rate for the mean gradient of the global batch")
      ->transform(number_above(0))
      ->capture_default_str();
  command.add_flag("--resume", o.resume, "Resume from the checkpoint in --out; start a new run if there is none")
      ->configurable(false);
  command
      .add_flag("--take-over", o.take_over,
                "With --resume: if another job is training in --out, wait until its next checkpoint, at which it ends, "
                "and continue")
      ->configurable(false);
  command
      .add_flag("--overwrite", o.overwrite, "Write to an --out with other files, and replace the file of --timeline")
      ->configurable(false);
  command.add_flag("--verbose", o.verbose, "Print all options, which are also in OUT/config.toml")->configurable(false);
}

void add_goal_options(CLI::App& command, TrainOptions& o) {
  std::vector<std::string> measures = measure_names();
  measures.push_back("auto");
  const auto parse_until = [&o](const std::string& text) {
    try {
      o.until = text == "none" ? std::nullopt : std::optional(parse_goal(text));
    } catch (const Error& error) {
      throw CLI::ValidationError("--until", error.what());
    }
  };
  command
      .add_option_function<std::string>("--until", parse_until,
                                        "Result of an evaluation that ends the run: " + example_goals())
      ->type_name("GOAL")
      ->default_str("none")
      ->group("Training");
  command
      .add_option("--patience", o.patience,
                  "Early stopping: end the run after N evaluations that are not the best so far; 0: do not")
      ->transform(whole_number(0))
      ->capture_default_str()
      ->group("Training");
  command
      .add_option_function<std::string>(
          "--best-by",
          [&o](const std::string& name) {
            o.best_by = name == "auto" ? std::nullopt : std::optional(parse_measure(name));
          },
          "Measure that makes an evaluation the best; auto: f1 (several classes), mae (real numbers), perplexity "
          "(text), else accuracy")
      ->check(one_of(measures))
      ->default_str("auto")
      ->group("Evaluation");
}

void add_step_options(CLI::App& command, TrainOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Training");
  };
  add("--max-steps", o.max_steps, "Maximum number of steps; 0: no limit")->transform(whole_number(0));
  add_goal_options(command, o);
  add("--accumulate", o.accumulate, "Gradient accumulation: parts in which a rank computes its share of a step")
      ->transform(whole_number(1));
  add("--pipeline", o.pipeline,
      "Pipeline stages: each rank has one of N parts of the network, which are cut to take the same time; N must "
      "divide "
      "the number of ranks. --batch counts samples of N ranks together; their micro-batches are those of --accumulate")
      ->transform(whole_number(1));
  add_recompute_option(command, o.recompute)->group("Training");
  command.add_flag("--sync-batch-norm", o.sync_batch_norm, "Synchronized batch norm: statistics of all ranks' images")
      ->group("Training");
  add("--loss", o.loss,
      "Loss: softmax (cross-entropy), binary (cross-entropy of each class by itself), mse (mean squared error), or "
      "auto "
      "(softmax, with several classes per image binary, for real numbers mse)")
      ->check(one_of({"auto", "softmax", "binary", "mse"}));
  add("--label-smoothing", o.label_smoothing, "Label smoothing: fraction of a label that is spread over all classes")
      ->transform(number_from(0, 0.9));
  add("--dropout", o.dropout, "Dropout rate of transformers (attention weights, ends of residual branches, embeddings)")
      ->transform(number_from(0, 0.9));
  const auto parse_weights = [&o](const std::vector<std::string>& texts) {
    o.balance_classes = texts == std::vector<std::string>{"balanced"};
    o.class_weights.clear();
    if (o.balance_classes || texts == std::vector<std::string>{"none"}) return;
    for (const std::string& text : texts)
      o.class_weights.push_back(static_cast<float>(parse_number("--class-weights", text, number_above(0))));
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--class-weights", parse_weights,
          "Weights of the classes in the loss: one for each, such as 1,2,0.5, or balanced (inverse frequency)")
      ->delimiter(',')
      ->type_name("WEIGHT")
      ->default_str("none")
      ->group("Training");
  command
      .add_flag("--zero-init", o.zero_init,
                "Initial scale 0 of the last batch norm of residual blocks: each starts as its shortcut")
      ->group("Training");
  add("--seed", o.seed, "Random seed (initial weights, sample order)")->transform(kSeed);
}

void add_survival_options(CLI::App& command, TrainOptions& o) {
  const std::string group = "Lost ranks";
  command
      .add_flag("--survive", o.survive,
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
}

void add_checkpoint_and_evaluation_options(CLI::App& command, TrainOptions& o) {
  add_interval_option(command, "--checkpoint-every", o.checkpoint_every,
                      "Checkpoint interval; also written when the run stops and after the best evaluation so far")
      ->group("Checkpoints");
  command.add_option("--keep", o.keep, "Most recent checkpoints to keep; the best is always kept")
      ->transform(whole_number(1, 1000000))
      ->capture_default_str()
      ->group("Checkpoints");
  add_data_changed_flag(command, o.data_changed,
                        "Resume with data that differs from the checkpoint's; the change is recorded")
      ->group("Checkpoints");
  add_interval_option(command, "--eval-every", o.evaluate_every,
                      "Evaluation interval: steps, such as 500, or 2epochs, 30s, 10min, 1h; the run's end is always "
                      "evaluated; end: only that")
      ->group("Evaluation");
  command
      .add_option("--eval-steps", o.evaluation_steps,
                  "Batches to evaluate during training, each as large as a step's; 0: all")
      ->transform(whole_number(0))
      ->capture_default_str()
      ->group("Evaluation");
}

}  // namespace

void add_train(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("train", "Train a model");
  auto options = std::make_shared<TrainOptions>();
  auto& o = *options;
  add_main_options(*command, o);
  add_stall_option(*command, chosen);
  add_step_options(*command, o);
  add_rate_options(*command, o.schedule);
  add_optimizer_options(*command, o);
  add_fine_tuning_options(*command, o);
  add_input_options(*command, o.data, Purpose::training);
  add_checkpoint_and_evaluation_options(*command, o);
  add_survival_options(*command, o);
  add_metrics_options(*command, o.metrics);
  add_strategy_options(*command, o);
  command->add_option("--all-reduce", o.all_reduce, kAllReduceHelp)
      ->check(one_of(all_reduce_names()))
      ->capture_default_str()
      ->group("All-reduce");
  add_wire_option(*command, o.wire)->group("All-reduce");
  add_bucket_options(*command, o.buckets);
  add_device_options(*command, o.device);
  add_timeline_options(*command, o.timeline);
  add_fault_option(*command, o.faults);
  auto print = std::make_shared<bool>(false);
  command->add_flag("--print-config", *print, "Print all settings, in the form of OUT/config.toml, and exit")
      ->configurable(false);
  auto best = std::make_shared<std::filesystem::path>();
  command
      ->add_option("--export-best", *best,
                   "Export the weights of the best evaluation when the run is complete: an ONNX file, or with the "
                   "extension .safetensors weights for PyTorch, as annulus export does")
      ->type_name("FILE")
      ->configurable(false)
      ->group("Checkpoints");

  command->callback([&chosen, command, options, best, print] {
    try {
      expect_sense(*options);
    } catch (const Error& error) {
      const CLI::Option* config = command->get_parent()->get_config_ptr();  // one of the options may be from its file
      const std::string file = config->empty() ? "" : fmt::format("with {}: ", config->as<std::string>());
      throw CLI::ParseError(file + error.what(), CLI::ExitCodes::ValidationError);
    }
    options->configuration = command->config_to_str(true, false);
    if (*print) {
      chosen.run_without_mpi = [options] {
        fmt::print("{}", options->configuration);
        return 0;
      };
      return;
    }
    // The bits of a step depend on the number of threads, whose default depends on the number of ranks.
    if (options->shards > 0 && options->device.threads == 0) options->device.threads = 1;
    if (!best->empty())
      options->on_complete = [best](const std::filesystem::path& checkpoint) {
        export_network({.checkpoint = checkpoint, .output = *best});
      };
    chosen.device = options->device.device;
    chosen.run = [options, best](const World& world, Watchdog& watchdog) {
      std::vector<std::filesystem::path> inputs = data_files(options->data.files);
      std::ranges::move(data_files(options->data.validation), std::back_inserter(inputs));
      if (is_network_file(options->model)) inputs.push_back(options->model);
      if (options->weights != "random" && options->weights != "auto") inputs.push_back(options->weights);
      expect_replaceable(world, {{options->timeline.file, FileKind::timeline}, {*best, export_kind(*best)}}, inputs,
                         options->overwrite);
      expect_export_name(*best);
      return train(world, *options, watchdog);
    };
  });
}

}  // namespace annulus
