#include "src/train/train.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "kernels/base/error.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/data/dataset.h"
#include "src/metrics/metrics_files.h"
#include "src/train/interval.h"
#include "src/train/recipes.h"

namespace annulus {
namespace {

// For the tests, and not in the help.
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

std::string recipe_help() {
  std::string text = "Settings that belong together; those that are given besides win. One of:";
  for (const Recipe& recipe : recipes())
    text += fmt::format("\n{:<14}{} ({})", recipe.name, recipe.description, recipe.source);
  return text;
}

// The option whose choice this one goes with: who makes another choice there makes this one as well.
std::string_view goes_with(std::string_view option) {
  if (option == "global-batch") return "batch";
  if (option == "warmup-from") return "warmup";
  if (option == "momentum" || option == "nesterov" || option == "trust") return "optimizer";
  if (option == "lr" || option == "lr-per") return "optimizer";
  if (option == "lr-steps" || option == "lr-factor" || option == "lr-end" || option == "lr-power") return "schedule";
  return option;
}

// What was given against what a recipe has there: "0.10" is "0.1".
bool is_same(const std::string& given, std::string_view value) {
  double a = 0, b = 0;
  const auto is_number = [](std::string_view text, double& number) {
    return std::from_chars(text.data(), text.data() + text.size(), number).ptr == text.data() + text.size();
  };
  return given == value || (is_number(given, a) && is_number(value, b) && a == b);
}

std::string list(const std::vector<Recipe::Setting>& settings) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : settings) texts.push_back(fmt::format("{} {}", name, value));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Gives the options that were not given those values, as if they had been. Returns what was done in a line.
std::string apply(const Recipe& recipe, CLI::App& command) {
  const auto option = [&](std::string_view name) { return command.get_option(fmt::format("--{}", name)); };
  const auto is_given = [&](std::string_view name) { return option(name)->count() > 0; };
  const auto is_chosen_otherwise = [&](std::string_view name) {
    const auto ours = std::ranges::find(recipe.settings, name, &Recipe::Setting::first);
    return is_given(name) && (ours == recipe.settings.end() || !is_same(option(name)->as<std::string>(), ours->second));
  };
  std::vector<Recipe::Setting> taken, left_out;
  for (const Recipe::Setting& setting : recipe.settings)
    if (!is_given(setting.first)) (is_chosen_otherwise(goes_with(setting.first)) ? left_out : taken).push_back(setting);
  for (const auto& [name, value] : taken) {
    option(name)->add_result(std::string(value));
    option(name)->run_callback();
  }
  std::string text =
      fmt::format("{} ({}): {}", recipe.name, recipe.source, taken.empty() ? "every setting was given" : list(taken));
  if (!left_out.empty())
    text += fmt::format("; left out, as what they go with was chosen otherwise: {}", list(left_out));
  return text;
}

void add_rate_options(CLI::App& command, ScheduleOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->group("Learning rate");
  };
  add("--lr", o.rate, "Learning rate, for the gradient's mean over the global batch")
      ->transform(number_above(0))
      ->capture_default_str();
  add("--lr-per", o.reference_batch,
      "The global batch that --lr is for, such as 256: it is multiplied by global batch / this; 0: it is as it is")
      ->transform(whole_number(0))
      ->capture_default_str();
  add("--warmup", o.warmup, "Epochs in which the rate grows to --lr, such as 5 or 0.5")
      ->transform(number_from(0))
      ->capture_default_str();
  const auto parse_share = [&o](const std::string& text) {
    o.warmup_from.reset();
    if (text == "usual") return;
    o.warmup_from = parse_number("--warmup-from", text, number_from(0, 1));
  };
  command
      .add_option_function<std::string>(
          "--warmup-from", parse_share,
          "Share of the rate to begin with; usual: 0, and with --lr-per the share that makes it --lr")
      ->type_name("SHARE")
      ->default_str("usual")
      ->group("Learning rate");
  add("--schedule", o.kind, "What becomes of the rate then: constant, step, cosine or polynomial, over all --epochs")
      ->check(CLI::IsMember({"constant", "step", "cosine", "polynomial"}))
      ->capture_default_str();
  const auto parse_steps = [&o](const std::vector<std::string>& texts) {
    o.steps.clear();
    if (texts == std::vector<std::string>{"none"}) return;
    for (const std::string& text : texts) o.steps.push_back(parse_number("--lr-steps", text, number_above(0)));
  };
  command
      .add_option_function<std::vector<std::string>>("--lr-steps", parse_steps,
                                                     "step: epochs after which the rate is lowered, such as 30,60,80")
      ->delimiter(',')
      ->type_name("EPOCHS")
      ->default_str("none")
      ->group("Learning rate");
  add("--lr-factor", o.factor, "step: by which it is multiplied")->transform(number_above(0))->capture_default_str();
  add("--lr-end", o.end, "cosine, polynomial: the rate at the end, whatever the global batch")
      ->transform(number_from(0))
      ->capture_default_str();
  add("--lr-power", o.power, "polynomial: the rate falls as (1 - x)^power")
      ->transform(number_above(0))
      ->capture_default_str();
}

void add_optimizer_options(CLI::App& command, TrainOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Optimizer");
  };
  add("--optimizer", o.optimizer, "sgd, lars or adamw")->check(CLI::IsMember({"sgd", "lars", "adamw"}));
  add("--momentum", o.momentum, "Of sgd and lars")->transform(number_from(0, 1));
  command.add_flag("--nesterov", o.nesterov, "Nesterov's momentum, with sgd")->group("Optimizer");
  add("--trust", o.trust, "Of lars: its rate for a layer is this share of the weights' norm / the gradient's")
      ->transform(number_above(0));
  const auto parse_betas = [&o](const std::string& text) {
    const std::size_t comma = std::min(text.find(','), text.size() - 1);
    const auto beta = [](const std::string& part) {
      return static_cast<float>(parse_number("--adam-betas", part, number_from(0, 1)));
    };
    o.betas = {beta(text.substr(0, comma)), beta(text.substr(comma + 1))};
    if (std::ranges::any_of(o.betas, [](float one) { return one == 1; }))
      throw CLI::ValidationError("--adam-betas", "give two numbers from 0 to below 1, such as 0.9,0.999");
  };
  command.add_option_function<std::string>("--adam-betas", parse_betas, "Of adamw: how slowly the two moments move")
      ->type_name("BETAS")
      ->default_str("0.9,0.999")
      ->group("Optimizer");
  add("--epsilon", o.epsilon, "Of adamw: added to the root of the second moment")->transform(number_above(0));
  add("--clip-norm", o.clip_norm, "Scale a step's gradients down to this norm, over all parameters; 0: leave them")
      ->transform(number_from(0));
  add("--ema", o.ema,
      "Decay of a moving average of the weights, such as 0.9999, that is evaluated instead of them; 0: none")
      ->transform(number_from(0, 0.9999999));
  add("--weight-decay", o.weight_decay, "Of the weights, not of biases and batch norm")->transform(number_from(0));
}

CLI::Option* add_interval_option(CLI::App& command, const std::string& name, Interval& interval,
                                 const std::string& help) {
  const auto parse = [&interval, name](const std::string& text) {
    try {
      interval = parse_interval(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(name, error.what());
    }
  };
  return command.add_option_function<std::string>(name, parse, help)->type_name("INTERVAL")->default_str("1epoch");
}

void add_metrics_options(CLI::App& command, MetricsOptions& o) {
  const std::vector<std::string> formats = metrics_formats();
  const auto parse = [&o, formats](const std::vector<std::string>& names) {
    o.formats = names;
    if (names == std::vector<std::string>{"none"}) return o.formats.clear();
    for (const std::string& name : names)
      if (std::ranges::find(formats, name) == formats.end())
        throw CLI::ValidationError("--metrics",
                                   fmt::format("{} is none of {}, or none alone", name, fmt::join(formats, ", ")));
  };
  command
      .add_option_function<std::vector<std::string>>(
          "--metrics", parse,
          "What tells in --out how training goes, while it does: jsonl (metrics.jsonl), csv (metrics.csv), tensorboard "
          "(tensorboard/), several of them, or none")
      ->delimiter(',')
      ->type_name("FORMATS")
      ->default_str("jsonl")
      ->group("Metrics");
  command.add_option("--metrics-every", o.every, "Steps from one line of them to the next")
      ->transform(whole_number(1))
      ->capture_default_str()
      ->group("Metrics");
}

// Throws Error where options do nothing together, or not what they promise.
void expect_sense(const TrainOptions& o) {
  const TrainOptions usual;
  if (o.nesterov && o.optimizer != "sgd") fail("--nesterov belongs to --optimizer sgd, and this is {}", o.optimizer);
  if (o.trust != usual.trust && o.optimizer != "lars")
    fail("--trust belongs to --optimizer lars, and this is {}", o.optimizer);
  if ((o.betas != usual.betas || o.epsilon != usual.epsilon) && o.optimizer != "adamw")
    fail("--adam-betas and --epsilon belong to --optimizer adamw, and this is {}", o.optimizer);
  if (o.momentum != usual.momentum && o.optimizer == "adamw")
    fail("--momentum belongs to --optimizer sgd or lars, and this is adamw, which has --adam-betas");
  // Means and variances are differences of large sums: what 16 bits leave of them is not what the options promise.
  if (o.sync_batch_norm && o.wire != "fp32")
    fail("--sync-batch-norm sums statistics over --wire, which must be fp32 for them and is {}: leave one of them out",
         o.wire);
  if (o.clip_norm > 0 && o.buckets.deferred > 0)
    fail("--clip-norm must know all sums of a step before its update, which --defer puts off: leave one of them out");
  check(o.schedule, o.epochs);
}

}  // namespace

void add_train(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("train", "Train a model");
  auto options = std::make_shared<TrainOptions>();
  auto& o = *options;
  add_data_options(*command, o.data, Purpose::training);
  command
      ->add_option("--out", o.out,
                   "Folder for all that the run writes: checkpoints, results.json, config.toml, metrics")
      ->required();
  command->add_option("--model", o.model, model_help())->capture_default_str();
  command->add_option("--epochs", o.epochs, "Passes over the training images")
      ->transform(whole_number(1, 1 << 30))
      ->capture_default_str();
  command->add_option("--max-steps", o.max_steps, "Stop after so many steps; 0: no limit")
      ->transform(whole_number(0))
      ->capture_default_str();

  command->add_option("--batch", o.batch, "Images a step on each rank")
      ->transform(whole_number(1))
      ->capture_default_str()
      ->group("Training");
  command
      ->add_option("--global-batch", o.global_batch,
                   "Images a step over all ranks, shared as evenly as it goes; where it is not 0, instead of --batch")
      ->transform(whole_number(0))
      ->capture_default_str()
      ->group("Training");
  command
      ->add_option(
          "--accumulate", o.accumulate,
          "Parts that a rank computes its share of a step in, one after the other, which takes the memory of one")
      ->transform(whole_number(1))
      ->capture_default_str()
      ->group("Training");
  command
      ->add_flag("--sync-batch-norm", o.sync_batch_norm,
                 "Batch norm trains with the statistics of all ranks' images, as one rank would with all of them")
      ->group("Training");
  command->add_option("--label-smoothing", o.label_smoothing, "Share of a label that is spread over all classes")
      ->transform(number_from(0, 0.9))
      ->capture_default_str()
      ->group("Training");
  command
      ->add_flag("--zero-init", o.zero_init,
                 "Let each residual block begin as its shortcut: the scale of its last batch norm begins with 0")
      ->group("Training");
  command->add_option("--seed", o.seed, "Of the first weights and of the order of the images")
      ->transform(kSeed)
      ->capture_default_str()
      ->group("Training");

  auto recipe = std::make_shared<std::optional<Recipe>>();
  const auto choose = [recipe](const std::string& name) {
    try {
      *recipe = find_recipe(name);
    } catch (const Error& error) {
      throw CLI::ValidationError("--recipe", error.what());
    }
  };
  command->add_option_function<std::string>("--recipe", choose, recipe_help());
  add_rate_options(*command, o.schedule);
  add_optimizer_options(*command, o);

  command->add_flag("--resume", o.resume, "Go on from the checkpoint in --out; begin anew where there is none")
      ->configurable(false)
      ->group("Checkpoints");
  add_data_changed_flag(*command, o.data_changed,
                        "With --resume: continue with data that differs from the checkpoint's, which is recorded");
  add_interval_option(*command, "--checkpoint-every", o.checkpoint_every,
                      "How often one is written, and where the run stops, and where an evaluation is the best so far")
      ->group("Checkpoints");
  command->add_option("--keep", o.keep, "So many of the last stay, and the best")
      ->transform(whole_number(1, 1000000))
      ->capture_default_str()
      ->group("Checkpoints");
  add_interval_option(*command, "--eval-every", o.evaluate_every,
                      "How often the test images are evaluated, and at the run's end: steps, such as 500, or 2epochs, "
                      "30s, 10min, 1h; end: only then")
      ->group("Evaluation");
  command
      ->add_option("--eval-steps", o.evaluation_steps,
                   "Only the first so many batches of them, of as many images as a step's at once; 0: all")
      ->transform(whole_number(0))
      ->capture_default_str()
      ->group("Evaluation");
  command->add_option("--all-reduce", o.all_reduce, kAllReduceHelp)->capture_default_str();
  add_wire_option(*command, o.wire);
  add_bucket_options(*command, o.buckets, &o.tune_buckets);
  add_device_options(*command, o.device);
  add_metrics_options(*command, o.metrics);
  add_timeline_options(*command, o.timeline);
  add_stall_option(*command, chosen);
  command
      ->add_flag("--overwrite", o.overwrite,
                 "Write to --out although it holds files of others, and replace the file of --timeline")
      ->configurable(false);
  add_fault_option(*command, o.faults);

  command->callback([&chosen, command, options, recipe] {
    if (*recipe) options->recipe = apply(**recipe, *command);
    expect_one_choice(options->buckets, options->tune_buckets);
    try {
      expect_sense(*options);
    } catch (const Error& error) {
      throw CLI::ParseError(error.what(), CLI::ExitCodes::ValidationError);
    }
    options->configuration = command->config_to_str(true, false);
    chosen.run = [options](const World& world, Watchdog& watchdog) {
      expect_whole_world(world);
      expect_replaceable(world, {{options->timeline.file, FileKind::timeline}}, data_files(options->data.files),
                         options->overwrite);
      return train(world, *options, watchdog);
    };
  });
}

}  // namespace annulus
