#include "src/apply/predict.h"

#include <memory>

#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"

namespace annulus {

void add_predict(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("predict", "Classify images");
  auto options = std::make_shared<PredictOptions>();
  auto& o = *options;
  command
      ->add_option("IMAGES", o.images,
                   "JPEG and PNG files, folders of them, and data files: test.h5, or test.h5:train for its train split")
      ->required();
  add_checkpoint_options(*command, o.checkpoint, o.weights);
  command->add_option("--top", o.top, "Most likely classes to report per image")
      ->transform(whole_number(1))
      ->capture_default_str();
  command->add_option("--batch", o.batch, "Batch size per rank")->transform(whole_number(1))->capture_default_str();
  command->add_option("--jsonl", o.jsonl, "File to write the results to, one line of JSON per image")
      ->type_name("FILE");
  add_overwrite_option(*command, o.overwrite);
  add_data_changed_flag(*command, o.data_changed, "Accept data files whose classes differ from the checkpoint's");
  add_stall_option(*command, chosen);
  add_device_options(*command, o.device);
  command->callback([&chosen, options] {
    chosen.device = options->device.device;
    chosen.run = [options](const World& world, Watchdog& watchdog) {
      std::vector<std::filesystem::path> inputs{options->checkpoint};
      // In test.h5:train the file is test.h5.
      for (const std::string& image : options->images)
        for (const std::string& name : {image, image.substr(0, image.rfind(':'))}) inputs.emplace_back(name);
      expect_replaceable(world, {{options->jsonl, FileKind::predictions}}, inputs, options->overwrite);
      return predict(world, *options, watchdog.activity());
    };
  });
}

}  // namespace annulus
