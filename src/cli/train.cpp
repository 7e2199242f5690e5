#include "src/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "kernels/error.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/recipes.h"

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

// The option whose choice this one goes with: who makes that choice himself makes this one as well.
std::string_view goes_with(std::string_view option) {
  if (option == "global-batch") return "batch";
  if (option == "warmup-from") return "warmup";
  if (option == "momentum" || option == "nesterov" || option == "trust") return "optimizer";
  if (option == "lr" || option == "lr-per") return "optimizer";
  if (option == "lr-steps" || option == "lr-factor" || option == "lr-end" || option == "lr-power") return "schedule";
  return option;
}

// Gives the options that were not given those values, as if they had been. Returns what was done in a line.
std::string apply(const Recipe& recipe, CLI::App& command) {
  const auto option = [&](std::string_view name) { return command.get_option(fmt::format("--{}", name)); };
  std::vector<Recipe::Setting> settings = recipe.settings;
  std::erase_if(settings, [&](const Recipe::Setting& setting) {
    return option(setting.first)->count() > 0 || option(goes_with(setting.first))->count() > 0;
  });
  std::string text = fmt::format("{} ({}):", recipe.name, recipe.source);
  for (const auto& [name, value] : settings) {
    option(name)->add_result(std::string(value));
    option(name)->run_callback();
    text += fmt::format("{} {} {}", text.back() == ':' ? "" : ",", name, value);
  }
  return settings.empty() ? text + " every setting was given" : text;
}

double number(const std::string& text, const std::string& option) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    throw CLI::ValidationError(option, "\"" + text + "\" is no number");
  return value;
}

void add_rate_options(CLI::App& command, ScheduleOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->group("Learning rate");
  };
  add("--lr", o.rate, "Learning rate, for the gradient's mean over the global batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add("--lr-per", o.reference_batch,
      "The global batch that --lr is for, such as 256: it is multiplied by global batch / this; 0: it is as it is")
      ->capture_default_str();
  add("--warmup", o.warmup, "Epochs in which the rate grows to --lr, such as 5 or 0.5")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  const auto parse_share = [&o](const std::string& text) {
    o.warmup_from.reset();
    if (text == "usual") return;
    const double share = number(text, "--warmup-from");
    if (!(share >= 0 && share <= 1)) throw CLI::ValidationError("--warmup-from", "give a share, from 0 to 1, or usual");
    o.warmup_from = share;
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
    for (const std::string& text : texts) o.steps.push_back(number(text, "--lr-steps"));
  };
  command
      .add_option_function<std::vector<std::string>>("--lr-steps", parse_steps,
                                                     "step: epochs after which the rate is lowered, such as 30,60,80")
      ->delimiter(',')
      ->type_name("EPOCHS")
      ->default_str("none")
      ->group("Learning rate");
  add("--lr-factor", o.factor, "step: by which it is multiplied")->check(CLI::PositiveNumber)->capture_default_str();
  add("--lr-end", o.end, "cosine, polynomial: the rate at the end, whatever the global batch")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add("--lr-power", o.power, "polynomial: the rate falls as (1 - x)^power")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void add_optimizer_options(CLI::App& command, TrainOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Optimizer");
  };
  add("--optimizer", o.optimizer, "sgd, lars or adamw")->check(CLI::IsMember({"sgd", "lars", "adamw"}));
  add("--momentum", o.momentum, "Of sgd and lars")->check(CLI::Range(0.0, 1.0));
  command.add_flag("--nesterov", o.nesterov, "Nesterov's momentum, with sgd")->group("Optimizer");
  add("--trust", o.trust, "Of lars: its rate for a layer is this share of the weights' norm / the gradient's")
      ->check(CLI::PositiveNumber);
  const auto parse_betas = [&o](const std::string& text) {
    const std::size_t comma = std::min(text.find(','), text.size() - 1);
    o.betas = {static_cast<float>(number(text.substr(0, comma), "--adam-betas")),
               static_cast<float>(number(text.substr(comma + 1), "--adam-betas"))};
    if (std::ranges::any_of(o.betas, [](float beta) { return !(beta >= 0 && beta < 1); }))
      throw CLI::ValidationError("--adam-betas", "give two numbers from 0 to below 1, such as 0.9,0.999");
  };
  command.add_option_function<std::string>("--adam-betas", parse_betas, "Of adamw: how slowly the two moments move")
      ->type_name("BETAS")
      ->default_str("0.9,0.999")
      ->group("Optimizer");
  add("--epsilon", o.epsilon, "Of adamw: added to the root of the second moment")->check(CLI::PositiveNumber);
  add("--clip-norm", o.clip_norm, "Scale a step's gradients down to this norm, over all parameters; 0: leave them")
      ->check(CLI::NonNegativeNumber);
  add("--ema", o.ema,
      "Decay of a moving average of the weights, such as 0.9999, that is evaluated instead of them; 0: none")
      ->check(CLI::Range(0.0, 0.9999999));
  add("--weight-decay", o.weight_decay, "Of the weights, not of biases and batch norm")->check(CLI::NonNegativeNumber);
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
  command->add_option("--out", o.out, "Folder for all that the run writes: checkpoint.h5, results.json, config.toml")
      ->required();
  command->add_option("--model", o.model, model_help())->capture_default_str();
  command->add_option("--epochs", o.epochs, "Passes over the training images")->capture_default_str();
  command->add_option("--max-steps", o.max_steps, "Stop after so many steps; 0: no limit")->capture_default_str();

  command->add_option("--batch", o.batch, "Images a step on each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Training");
  command
      ->add_option("--global-batch", o.global_batch,
                   "Images a step over all ranks, shared as evenly as it goes; where it is not 0, instead of --batch")
      ->capture_default_str()
      ->group("Training");
  command
      ->add_option(
          "--accumulate", o.accumulate,
          "Parts that a rank computes its share of a step in, one after the other, which takes the memory of one")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Training");
  command
      ->add_flag("--sync-batch-norm", o.sync_batch_norm,
                 "Batch norm trains with the statistics of all ranks' images, as one rank would with all of them")
      ->group("Training");
  command->add_option("--label-smoothing", o.label_smoothing, "Share of a label that is spread over all classes")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str()
      ->group("Training");
  command
      ->add_flag("--zero-init", o.zero_init,
                 "Let each residual block begin as its shortcut: the scale of its last batch norm begins with 0")
      ->group("Training");
  command->add_option("--seed", o.seed, "Of the first weights and of the order of the images")
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
  command->add_option("--checkpoint-every", o.checkpoint_every, "Steps between checkpoints; 0: one an epoch")
      ->capture_default_str()
      ->group("Checkpoints");
  command->add_option("--all-reduce", o.all_reduce, kAllReduceHelp)->capture_default_str();
  add_wire_option(*command, o.wire);
  add_bucket_options(*command, o.buckets, o.tune_buckets);
  add_device_options(*command, o.device);
  add_timeline_options(*command, o.timeline);
  command
      ->add_option("--stall-timeout", o.stall_seconds,
                   "End the job, saying where each rank stands, when nothing moves for so many seconds; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
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
    chosen = [options](const World& world) {
      expect_whole_world(world);
      return train(world, *options);
    };
  });
}

}  // namespace annulus
