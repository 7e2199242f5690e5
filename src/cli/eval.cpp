#include <memory>

#include "src/apply/evaluate_checkpoint.h"
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
  add_data_option(*command, o.data);
  command->add_option("--split", o.split, "Split of the data: train, validation or test")
      ->check(one_of({"train", "validation", "test"}))
      ->capture_default_str();
  command->add_option("--batch", o.batch, "Batch size per rank")->transform(whole_number(1))->capture_default_str();
  command->add_option("--json", o.json, "JSON file to write the result to")->type_name("FILE");
  add_overwrite_option(*command, o.overwrite);
  add_data_changed_flag(*command, o.data_changed, "Accept data whose classes differ from the checkpoint's");
  add_stall_option(*command, chosen);
  add_input_options(*command, o.data, Purpose::evaluation);
  add_device_options(*command, o.device);
  command->callback([&chosen, options] {
    chosen.run = [options](const World& world, Watchdog& watchdog) {
      expect_whole_world(world);
      std::vector<std::filesystem::path> inputs = data_files(options->data.files);
      inputs.push_back(options->checkpoint);
      expect_replaceable(world, {{options->json, FileKind::evaluation}}, inputs, options->overwrite);
      evaluate(world, *options, watchdog.activity());
      return 0;
    };
  });
}

}  // namespace annulus
