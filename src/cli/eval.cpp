#include <memory>

#include "src/apply/evaluate_checkpoint.h"
#include "src/apply/follow_run.h"
#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"
#include "src/data/dataset.h"

namespace annulus {

void add_eval(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("eval", "Evaluate a checkpoint");
  auto options = std::make_shared<EvaluateOptions>();
  auto& o = *options;
  add_checkpoint_options(*command, o.checkpoint, o.weights);
  auto* checkpoint = command->get_option("--checkpoint")->required(false);
  auto* follow = command->add_option("--follow", o.checkpoint,
                                     "A run's folder: evaluate all of its checkpoints, and new ones until it ends");
  follow->type_name("RUN")->excludes(checkpoint);
  command
      ->add_option("--interval", o.interval,
                   "With --follow: least seconds from the begin of an evaluation to that of the next one")
      ->transform(number_from(0))
      ->capture_default_str()
      ->needs(follow);
  command
      ->add_option("--grace", o.grace,
                   "With --follow: seconds to wait for another job that continues the run, such as a requeued one, if "
                   "its job ended before the run was complete or stopped")
      ->transform(number_from(0))
      ->capture_default_str()
      ->needs(follow);
  add_data_option(*command, o.data);
  command->add_option("--split", o.split, "Split of the data: train, validation or test")
      ->check(one_of({"train", "validation", "test"}))
      ->capture_default_str();
  command->add_option("--batch", o.batch, "Batch size per rank")->transform(whole_number(1))->capture_default_str();
  command->add_flag(
      "--per-class", o.per_class,
      "Report precision, recall and F1 of each class and the most frequent confusions; --json: all of them");
  add_json_option(*command, chosen, o.json,
                  "JSON file to write the result to; with --follow a line for each checkpoint is appended");
  add_overwrite_option(*command, o.overwrite);
  add_data_changed_flag(*command, o.data_changed, "Accept data whose classes differ from the checkpoint's");
  add_stall_option(*command, chosen);
  add_input_options(*command, o.data, Purpose::evaluation);
  add_views_option(*command, o.data)->group("Data");
  add_device_options(*command, o.device);
  command->callback([&chosen, options, checkpoint, follow] {
    if (checkpoint->empty() && follow->empty())
      throw CLI::ValidationError("--checkpoint", "give a checkpoint, or --follow RUN");
    options->follow = !follow->empty();
    if (options->follow && chosen.reports_on_stdout)
      throw CLI::ValidationError("--json", "with --follow the results are appended to a file: give one instead of -");
    chosen.device = options->device.device;
    chosen.run = [options](const World& world, Watchdog& watchdog) {
      std::vector<std::filesystem::path> inputs = data_files(options->data.files);
      inputs.push_back(options->checkpoint);
      const FileKind kind = options->follow ? FileKind::run_evaluation : FileKind::evaluation;
      expect_replaceable(world, {{options->json, kind}}, inputs, options->overwrite);
      if (options->follow) {
        follow_run(world, *options, watchdog.activity());
      } else {
        evaluate(world, *options, watchdog.activity());
      }
      return 0;
    };
  });
}

}  // namespace annulus
