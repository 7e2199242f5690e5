#include <memory>

#include "src/apply/list_models.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"

namespace annulus {

void add_models(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("models", "What the models are, and what they cost");
  auto options = std::make_shared<ModelsOptions>();
  auto& o = *options;
  command->add_option("--model", o.model, "Only this one, layer by layer");
  command
      ->add_option("--image", o.image,
                   "Height, width and channels, such as 224x224x3; each model's usual ones if not given")
      ->delimiter('x')
      ->expected(3)
      ->transform(whole_number(1, 1 << 20));
  command->add_option("--classes", o.classes, "Classes; as usual if not given")
      ->transform(whole_number(1, kMostClasses));
  command->add_option("--json", o.json, "Write the table to this file as well");
  add_overwrite_option(*command, o.overwrite);
  command->callback([&chosen, options] {
    chosen.run = [options](const World& world, Watchdog&) {
      expect_replaceable(world, {{options->json, FileKind::model_list}}, {}, options->overwrite);
      if (world.root()) list_models(*options);
      return 0;
    };
  });
}

}  // namespace annulus
