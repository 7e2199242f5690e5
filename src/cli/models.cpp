#include <fmt/format.h>

#include <memory>

#include "models/zoo/zoo.h"
#include "src/apply/list_models.h"
#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"
#include "src/cli/numbers.h"

namespace annulus {
namespace {

std::string models_help() {
  std::string text = "Model, or ONNX file, to show layer by layer, instead of all:";
  for (const ZooEntry& entry : zoo()) text += fmt::format("\n{:<18}  {}", entry.name, entry.description);
  return text;
}

}  // namespace

void add_models(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("models", "List the models and their costs");
  auto options = std::make_shared<ModelsOptions>();
  auto& o = *options;
  auto* model = command->add_option("--model", o.model, models_help())->check(network());
  add_image_option(*command, o.image, 1 << 20, "each model's own");
  command->add_option("--length", o.length, "Tokens in a window, for models that read text; default: each model's own")
      ->transform(whole_number(1, kMostLength));
  command->add_option("--classes", o.classes, "Number of classes; default: each model's own")
      ->transform(whole_number(1, kMostClasses));
  command->add_option("--check", o.check, "ONNX file to check: list every node that cannot be trained")
      ->type_name("FILE");
  add_size_options(*command, o.model, o.length);
  for (const char* size : {"--layers", "--width", "--heads", "--context"}) command->get_option(size)->needs(model);
  add_pixels_option(*command, o.pixels);
  add_json_option(*command, chosen, o.json, "JSON file to write the table, or the result of --check, to");
  add_overwrite_option(*command, o.overwrite);
  command->callback([&chosen, options] {
    chosen.run_without_mpi = [options] {
      expect_replaceable({options->json, FileKind::model_list}, {}, options->overwrite);
      if (!options->check.empty()) return check_network(*options) ? 0 : 1;
      list_models(*options);
      return 0;
    };
  });
}

}  // namespace annulus
