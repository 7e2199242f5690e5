#include <memory>

#include "src/apply/export_onnx.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"

namespace annulus {

void add_export(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("export", "Write a checkpoint's network as an ONNX file, for other programs");
  auto options = std::make_shared<ExportOptions>();
  auto& o = *options;
  command->add_option("file", o.output, "The ONNX file to make")->required();
  add_checkpoint_options(*command, o.checkpoint, o.weights);
  add_overwrite_option(*command, o.overwrite);
  command->callback([&chosen, options] {
    chosen.run = [options](const World& world, Watchdog&) {
      expect_replaceable(world, {{options->output, FileKind::onnx}}, {options->checkpoint}, options->overwrite);
      if (world.root()) export_onnx(*options);
      return 0;
    };
  });
}

}  // namespace annulus
