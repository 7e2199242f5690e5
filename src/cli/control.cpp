#include "src/train/control.h"

#include <memory>

#include "src/cli/commands.h"
#include "src/cli/numbers.h"

namespace annulus {

void add_control(CLI::App& app, Command& chosen) {
  struct Options {
    std::filesystem::path run;
    int rank = 0;
  };
  auto* command = app.add_subcommand("control", "Change a run with --survive while it is running");
  auto options = std::make_shared<Options>();
  command->add_option("RUN", options->run, "The run's folder (its --out)")->required();
  auto* exclude = command->add_subcommand("exclude", "Go on without a rank, such as one that is slow; it ends itself");
  exclude->add_option("RANK", options->rank, "Number of the rank when the run started")
      ->transform(whole_number(0, 1 << 30))
      ->required();
  command->require_subcommand(1);
  exclude->callback([&chosen, options] {
    chosen.run_without_mpi = [options] {
      ask_to_exclude(options->run, options->rank);
      return 0;
    };
  });
}

}  // namespace annulus
