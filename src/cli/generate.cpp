#include "src/apply/generate.h"

#include <memory>

#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"

namespace annulus {

void add_generate(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("generate", "Continue a text");
  auto options = std::make_shared<GenerateOptions>();
  auto& o = *options;
  add_checkpoint_options(*command, o.checkpoint, o.weights);
  command->add_option("--prompt", o.prompt, "Text to continue; default: the beginning of a text")->type_name("TEXT");
  command->add_option("--tokens", o.tokens, "Maximum number of tokens to generate")
      ->transform(whole_number(1))
      ->capture_default_str();
  command
      ->add_option("--temperature", o.temperature,
                   "Divides the logits: below 1 for likelier texts; 0: always the likeliest token")
      ->transform(number_from(0, 100))
      ->capture_default_str();
  command->add_option("--top-k", o.top_k, "Choose among the K likeliest tokens; 0: among all")
      ->transform(whole_number(0))
      ->capture_default_str();
  command->add_option("--seed", o.seed, "Seed of the choices")->transform(kSeed)->capture_default_str();
  add_device_options(*command, o.device);
  command->callback([&chosen, options] {
    chosen.device = options->device.device;
    chosen.run = [options](const World& world, Watchdog&) {
      generate(world, *options);
      return 0;
    };
  });
}

}  // namespace annulus
