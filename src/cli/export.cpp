#include <memory>

#include "src/apply/export_network.h"
#include "src/cli/commands.h"
#include "src/cli/common_options.h"

namespace annulus {

void add_export(CLI::App& app, Command& chosen) {
  auto* command =
      app.add_subcommand("export", "Export a checkpoint's network as an ONNX file, or its weights for PyTorch");
  auto options = std::make_shared<ExportOptions>();
  auto& o = *options;
  command->add_option("FILE", o.output, "ONNX file to write, or with the extension .safetensors a file of weights")
      ->required();
  add_checkpoint_options(*command, o.checkpoint, o.weights);
  add_overwrite_option(*command, o.overwrite);
  command->callback([&chosen, options] {
    chosen.run_without_mpi = [options] {
      expect_replaceable({options->output, export_kind(options->output)}, {options->checkpoint}, options->overwrite);
      expect_export_name(options->output);
      export_network(*options);
      return 0;
    };
  });
}

}  // namespace annulus
