#include "src/train/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "collectives/all_reduce.h"
#include "kernels/base/error.h"
#include "src/apply/export_network.h"
#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/cli/train_options.h"
#include "src/data/dataset.h"
#include "src/onnx/network_file.h"
#include "src/train/check_options.h"

namespace annulus {
namespace {

struct TrainLine {
  TrainOptions options;
  StrategyChoice strategy;
  bool prints = false;         // the configuration, instead of training
  std::filesystem::path best;  // to export the best weights to
};

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
}

void add_output_options(CLI::App& command, TrainLine& line, Command& chosen) {
  add_json_option(command, chosen, line.options.json, "JSON file to write OUT/results.json to as well, at the end")
      ->configurable(false);
  command.add_flag("--quiet", chosen.quiet, "Print only errors, warnings and the result")->configurable(false);
  command
      .add_flag("--dry-run", line.options.dry_run,
                "Print what a run would do and need (steps, shares, learning rate, memory, time by a few steps), write "
                "nothing, and exit")
      ->configurable(false);
  command.add_flag("--print-config", line.prints, "Print all settings, in the form of OUT/config.toml, and exit")
      ->configurable(false);
  command
      .add_option("--export-best", line.best,
                  "Export the weights of the best evaluation when the run is complete: an ONNX file, or with the "
                  "extension .safetensors weights for PyTorch, as annulus export does")
      ->type_name("FILE")
      ->configurable(false)
      ->group("Checkpoints");
}

// Throws if options contradict each other.
void check(const CLI::App& command, TrainLine& line) {
  try {
    line.options.strategy = make_strategy(line.strategy);
    check(line.options);
  } catch (const Error& error) {
    const CLI::Option* config = command.get_parent()->get_config_ptr();  // one of the options may be from its file
    const std::string file = config->empty() ? "" : fmt::format("with {}: ", config->as<std::string>());
    throw CLI::ParseError(file + error.what(), CLI::ExitCodes::ValidationError);
  }
}

int run(const World& world, const TrainLine& line, Watchdog& watchdog) {
  const TrainOptions& o = line.options;
  std::vector<std::filesystem::path> inputs = data_files(o.data.files);
  std::ranges::move(data_files(o.data.validation), std::back_inserter(inputs));
  if (is_network_file(o.model)) inputs.push_back(o.model);
  if (o.weights != "random" && o.weights != "auto") inputs.push_back(o.weights);
  expect_replaceable(
      world,
      {{o.timeline.file, FileKind::timeline}, {line.best, export_kind(line.best)}, {o.json, FileKind::run_results}},
      inputs, o.overwrite);
  expect_export_name(line.best);
  return train(world, o, watchdog);
}

// Makes `line` the chosen command.
void choose(const CLI::App& command, const std::shared_ptr<TrainLine>& line, Command& chosen) {
  TrainOptions& o = line->options;
  o.configuration = command.config_to_str(true, false);
  if (line->prints) {
    chosen.reports_on_stdout = chosen.quiet = false;  // the settings are the output; scripts/launch reads them
    chosen.run_without_mpi = [line] {
      fmt::print("{}", line->options.configuration);
      return 0;
    };
    return;
  }
  // The bits of a step depend on the number of threads, whose default depends on the number of ranks.
  if (o.shards > 0 && o.device.threads == 0) o.device.threads = 1;
  chosen.device = o.device.device;
  chosen.run = [line](const World& world, Watchdog& watchdog) { return run(world, *line, watchdog); };
}

}  // namespace

void add_train(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("train", "Train a model");
  auto line = std::make_shared<TrainLine>();
  TrainOptions& o = line->options;
  add_main_options(*command, o);
  add_stall_option(*command, chosen);
  add_step_options(*command, o);
  add_rate_options(*command, o.schedule);
  add_optimizer_options(*command, o);
  add_fine_tuning_options(*command, o);
  add_input_options(*command, o.data, Purpose::training);
  add_size_options(*command, o.model, o.data.length);
  add_checkpoint_and_evaluation_options(*command, o);
  add_views_option(*command, o.data)->group("Evaluation");
  add_survival_options(*command, o.survival);
  add_metrics_options(*command, o.metrics);
  add_strategy_options(*command, line->strategy);
  command->add_option("--all-reduce", o.all_reduce, kAllReduceHelp)
      ->check(one_of(all_reduce_names()))
      ->capture_default_str()
      ->group("All-reduce");
  add_wire_option(*command, o.wire)->group("All-reduce");
  add_bucket_options(*command, o.buckets);
  add_device_options(*command, o.device);
  add_timeline_options(*command, o.timeline);
  add_fault_option(*command, o.faults);
  add_output_options(*command, *line, chosen);
  command->callback([&chosen, command, line] {
    if (!line->best.empty())
      line->options.on_complete = [best = line->best](const std::filesystem::path& checkpoint) {
        export_network({.checkpoint = checkpoint, .output = best});
      };
    check(*command, *line);
    choose(*command, line, chosen);
  });
}

}  // namespace annulus
