#include "src/cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "src/cli/commands.h"
#include "src/cli/flat_config.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

constexpr int kUsageExitCode = 2;

[[noreturn]] void refuse(const CLI::ParseError& error, bool speaks) {
  if (speaks) fmt::print(stderr, "annulus: {}; see annulus --help\n", printable_lines(error.what()));
  std::exit(kUsageExitCode);
}

}  // namespace

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  if (parent == nullptr) return "";
  const std::string first = full_name(*parent);
  return first.empty() ? command.get_name() : first + ' ' + command.get_name();
}

void add_commands(CLI::App& app, Command& chosen) {
  app.set_version_flag("--version", std::string("annulus ") + ANNULUS_VERSION);
  app.set_config("--config", "", "TOML file with options of the command, in lines such as lr = 0.05");
  app.config_formatter(flat_config(app));
  app.fallthrough();
  add_train(app, chosen);
  add_eval(app, chosen);
  add_checkpoint(app, chosen);
  add_predict(app, chosen);
  add_export(app, chosen);
  add_import(app, chosen);
  add_bench(app, chosen);
  add_predict_scaling(app, chosen);
  add_models(app, chosen);
  add_doctor(app, chosen);
}

Command parse_command_line(int argc, char** argv, bool speaks) {
  CLI::App app(
      "Synchronous data-parallel training. Run it as one process, or with several ranks under mpirun or srun.\n"
      "annulus COMMAND --help lists a command's options.",
      "annulus");
  Command chosen;
  add_commands(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    // CLI11 handles --help before it reports unknown arguments.
    if (const auto unknown = app.remaining(true); !unknown.empty()) refuse(CLI::ExtrasError(unknown), speaks);
    if (speaks) app.exit(help);
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    refuse(error, speaks);
  }
  if (!chosen.run && !chosen.run_without_mpi) {
    if (speaks) fmt::print("{}", app.help());
    std::exit(kUsageExitCode);
  }
  return chosen;
}

}  // namespace annulus
