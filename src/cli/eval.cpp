#include <memory>

#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/evaluate_checkpoint.h"

namespace annulus {

void add_eval(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("eval", "Evaluate a checkpoint");
  auto options = std::make_shared<EvaluateOptions>();
  auto& o = *options;
  add_data_options(*command, o.data, Purpose::evaluation);
  add_checkpoint_options(*command, o.checkpoint, o.weights);
  command->add_option("--split", o.split, "Which images of the file: train or test")->capture_default_str();
  add_data_changed_flag(*command, o.data_changed, "Accept data whose classes differ from the checkpoint's");
  command->add_option("--batch", o.batch, "Images at once on each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--json", o.json, "Write the result to this file as well");
  add_device_options(*command, o.device);
  command->callback([&chosen, options] {
    chosen = [options](const World& world) {
      expect_whole_world(world);
      evaluate(world, *options);
      return 0;
    };
  });
}

}  // namespace annulus
