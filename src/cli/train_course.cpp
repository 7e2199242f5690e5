#include <algorithm>
#include <optional>

#include "kernels/base/error.h"
#include "src/cli/choices.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/cli/option_kinds.h"
#include "src/cli/train_options.h"
#include "src/metrics/metrics_files.h"

namespace annulus {
namespace {

// Makes "none" an empty value beside those that `parse` knows.
template <class Parse>
auto or_none(const Parse& parse) {
  return [parse](const std::string& text) { return text == "none" ? std::nullopt : std::optional(parse(text)); };
}

void add_goal_options(CLI::App& command, TrainOptions& o) {
  std::vector<std::string> measures = measure_names();
  measures.push_back("auto");
  add_parsed_option(command, "--until", o.until, or_none(parse_goal),
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

}  // namespace

void add_step_options(CLI::App& command, TrainOptions& o) {
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return command.add_option(name, value, help)->capture_default_str()->group("Training");
  };
  add("--max-steps", o.max_steps, "Maximum number of steps; 0: no limit")->transform(whole_number(0));
  add_goal_options(command, o);
  add("--accumulate", o.accumulate, "Gradient accumulation: parts in which a rank computes its share of a step")
      ->transform(whole_number(1));
  add_recompute_option(command, o.recompute)->group("Training");
  command.add_flag("--sync-batch-norm", o.sync_batch_norm, "Synchronized batch norm: statistics of all ranks' images")
      ->group("Training");
  add("--loss", o.loss,
      "Loss: softmax (cross-entropy), binary (cross-entropy of each class by itself), mse (mean squared error), masked "
      "(cross-entropy of masked tokens, 15 % of a text's), or auto (softmax, with several classes per image binary, "
      "for "
      "real numbers mse)")
      ->check(one_of({"auto", "softmax", "binary", "mse", "masked"}));
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
  command
      .add_option("--whiten", o.whiten,
                  "Layer that reads the images, a convolution whose weights become the principal patches of the "
                  "training images and do not change, such as whiten of airbench94")
      ->type_name("LAYER")
      ->group("Training");
  add("--seed", o.seed, "Random seed (initial weights, sample order)")->transform(kSeed);
}

void add_checkpoint_and_evaluation_options(CLI::App& command, TrainOptions& o) {
  add_parsed_option(command, "--checkpoint-every", o.checkpoint_every, parse_interval,
                    "Checkpoint interval; also written when the run stops and after the best evaluation so far")
      ->type_name("WHEN")
      ->default_str("1epoch")
      ->group("Checkpoints");
  command.add_option("--keep", o.keep, "Most recent checkpoints to keep; the best is always kept")
      ->transform(whole_number(1, 1000000))
      ->capture_default_str()
      ->group("Checkpoints");
  add_data_changed_flag(command, o.data_changed,
                        "Resume with data that differs from the checkpoint's; the change is recorded")
      ->group("Checkpoints");
  add_parsed_option(command, "--eval-every", o.evaluate_every, or_none(parse_interval),
                    "Evaluation interval: steps, such as 500, or 2epochs, 30s, 10min, 1h; the run's end is evaluated, "
                    "too; end: only that; none: never")
      ->type_name("WHEN")
      ->default_str("1epoch")
      ->group("Evaluation");
  command
      .add_option("--eval-steps", o.evaluation_steps,
                  "Batches to evaluate during training, each as large as a step's; 0: all")
      ->transform(whole_number(0))
      ->capture_default_str()
      ->group("Evaluation");
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
          "--metrics", parse,
          "Formats of the metrics in --out: jsonl, csv, tensorboard, prometheus, several of them, or none")
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

}  // namespace annulus
