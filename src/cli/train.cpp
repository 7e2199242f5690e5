#include "src/train.h"

#include <algorithm>
#include <memory>

#include "kernels/error.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"

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

}  // namespace

void add_train(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("train", "Train a model");
  auto options = std::make_shared<TrainOptions>();
  auto& o = *options;
  command->add_option("--data", o.data, "Data file, made by annulus import")->required();
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
  command->add_option("--lr", o.rate, "Learning rate, for the gradient's mean over the global batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Training");
  command->add_option("--optimizer", o.optimizer, "sgd, lars or adamw")
      ->check(CLI::IsMember({"sgd", "lars", "adamw"}))
      ->capture_default_str()
      ->group("Training");
  command->add_option("--momentum", o.momentum, "Momentum of SGD and LARS")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group("Training");
  command->add_flag("--nesterov", o.nesterov, "Nesterov's momentum, with sgd")->group("Training");
  command->add_option("--weight-decay", o.weight_decay, "Of the weights, not of biases and batch norm")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group("Training");
  command->add_option("--label-smoothing", o.label_smoothing, "Share of a label that is spread over all classes")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str()
      ->group("Training");
  command->add_option("--seed", o.seed, "Of the first weights and of the order of the images")
      ->capture_default_str()
      ->group("Training");

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

  command->callback([&chosen, command, options] {
    expect_one_choice(options->buckets, options->tune_buckets);
    options->configuration = command->config_to_str(true, false);
    chosen = [options](const World& world) {
      expect_whole_world(world);
      return train(world, *options);
    };
  });
}

}  // namespace annulus
