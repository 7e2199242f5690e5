#include "src/data/import.h"

#include <memory>

#include "src/cli/commands.h"

namespace annulus {

void add_import(CLI::App& app, Command& chosen) {
  auto* command = app.add_subcommand("import", "Make a data file from a data set in another format");
  auto options = std::make_shared<ImportOptions>();
  auto& o = *options;
  command->add_option("file", o.output, "The HDF5 file to make")->required();
  command->add_option("source", o.source, "Folder of the data set")->required();
  command->add_option("--from", o.format, "Its format: idx (as MNIST is distributed, gzip-compressed or not)")
      ->capture_default_str();
  command->add_option("--classes", o.classes, "Names of the classes by label, separated by commas")->delimiter(',');
  command->callback([&chosen, options] {
    chosen = [options](const World& world) {
      if (world.root()) import_data(*options);
      world.barrier();
      return 0;
    };
  });
}

}  // namespace annulus
