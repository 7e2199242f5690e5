#include "src/predict.h"

#include <memory>

#include "src/cli/commands.h"
#include "src/cli/common_options.h"

namespace annulus {

void add_predict(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("predict", "Say what images show");
  auto options = std::make_shared<PredictOptions>();
  auto& o = *options;
  command
      ->add_option("images", o.images,
                   "JPEG and PNG files, folders of them, and data files: test.h5, or test.h5:train for another split")
      ->required();
  add_checkpoint_options(*command, o.checkpoint, o.weights);
  add_data_changed_flag(*command, o.data_changed, "Accept data files whose classes differ from the checkpoint's");
  command->add_option("--top", o.top, "So many of the likeliest classes of each image")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--batch", o.batch, "Images at once on each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--jsonl", o.jsonl, "Write it to this file as well, a line of JSON for each image");
  add_device_options(*command, o.device);
  command->callback([&chosen, options] {
    chosen = [options](const World& world) {
      expect_whole_world(world);
      return predict(world, *options);
    };
  });
}

}  // namespace annulus
