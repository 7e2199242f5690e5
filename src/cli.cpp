#include "src/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "src/cli/commands.h"

namespace annulus {
namespace {

constexpr int kUsageExitCode = 2;

// A configuration file is flat: its keys are the options of the command that is being run, without the dashes.
class FlatConfig : public CLI::ConfigTOML {
 public:
  explicit FlatConfig(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& stream) const override {
    auto entries = CLI::ConfigTOML::from_config(stream);
    std::vector<std::string> commands;
    for (const auto* app = &app_; !app->get_subcommands().empty(); commands.push_back(app->get_name()))
      app = app->get_subcommands().front();
    for (auto& entry : entries) entry.parents.insert(entry.parents.begin(), commands.begin(), commands.end());
    return entries;
  }

 private:
  const CLI::App& app_;
};

[[noreturn]] void refuse(const CLI::ParseError& error, bool speaks) {
  if (speaks) fmt::print(stderr, "annulus: {}; see annulus --help\n", error.what());
  std::exit(kUsageExitCode);
}

}  // namespace

Command parse_command_line(int argc, char** argv, bool speaks) {
  CLI::App app(
      "Synchronous data-parallel training. Run it alone, or as many ranks under mpirun or srun.\n"
      "annulus COMMAND --help lists a command's options.",
      "annulus");
  app.set_version_flag("--version", std::string("annulus ") + ANNULUS_VERSION);
  app.set_config("--config", "", "Read the command's options from this file; a TOML file of lines such as lr = 0.05");
  app.config_formatter(std::make_shared<FlatConfig>(app));
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.fallthrough();

  Command chosen;
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    // CLI11 answers --help before it complains of unknown words.
    if (const auto unknown = app.remaining(true); !unknown.empty()) refuse(CLI::ExtrasError(unknown), speaks);
    if (speaks) app.exit(help);
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    refuse(error, speaks);
  }
  if (!chosen.run) {
    if (speaks) fmt::print("{}", app.help());
    std::exit(kUsageExitCode);
  }
  return chosen;
}

}  // namespace annulus
