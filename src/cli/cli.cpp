#include "src/cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/flat_config.h"
#include "src/cli/help.h"
#include "src/cli/numbers.h"
#include "src/io/printable.h"
#include "src/io/shortened.h"
#include "src/io/standard_output.h"
#include "src/io/terminal.h"
#include "src/io/version.h"
#include "src/job/job_status.h"
#include "src/job/launched_rank.h"
#include "src/train/renamed_options.h"

namespace annulus {
namespace {

constexpr int kUsageExitCode = 2;

// Describes the first word that the parser does not know.
std::string describe_unknown(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  const std::size_t dashes = word.find_first_not_of('-');
  if (dashes > 0 && dashes != std::string::npos) {
    for (const CLI::App* app = &command; app != nullptr; app = app->get_parent())
      for (const CLI::Option* option : app->get_options({}))
        if (!option->get_group().empty() && !option->get_positional()) names.push_back(option->get_single_name());
    const std::string option = word.substr(0, word.find('=')), name = option.substr(dashes);
    if (std::ranges::find(names, name) != names.end())
      return fmt::format("{} must follow the command {}", option, full_name(command));
    if (const RenamedOption* renamed = find_renamed(name);
        renamed != nullptr && std::ranges::find(names, renamed->option) != names.end())
      return renamed->message();
    return fmt::format("unknown option {}{}", option, did_you_mean(name, names, "--"));
  }
  for (const CLI::App* subcommand : command.get_subcommands({})) names.push_back(subcommand->get_name());
  if (names.empty()) return fmt::format("unexpected argument {}", in_quotes(word));
  return fmt::format("unknown command {}{}", in_quotes(word), did_you_mean(word, names));
}

// Describes an option with a wrong number of values. `text`: CLI11's message, which begins with the option's name.
std::string describe_mismatch(const CLI::App& command, const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent())
    if (const CLI::Option* option = app->get_option_no_throw(name); option != nullptr)
      return fmt::format("{}: wrong number of values, expected {}", name, usage_of(*option));
  return text;
}

[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error, bool speaks) {
  const std::string name = emphasized(stderr, Emphasis::error, "annulus: ");
  if (speaks) {
    fmt::print(stderr, "{}{}\n", name, shortened(printable_lines(usage_error(app, error))));
    report_job_status(kUsageExitCode, 0);
  } else {
    let_first_rank_report();
  }
  std::exit(kUsageExitCode);
}

}  // namespace

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  if (parent == nullptr) return "";
  const std::string first = full_name(*parent);
  return first.empty() ? command.get_name() : first + ' ' + command.get_name();
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const std::vector<std::string> unknown = app.remaining(true);  // CLI11 reports unknown words last
  std::string text = error.what();
  if (!unknown.empty())
    text = describe_unknown(*command, unknown.front());
  else if (error.get_name() == "ArgumentMismatch")
    text = describe_mismatch(*command, text);
  else if (error.get_name() == "FileError")
    text = fmt::format("--config: cannot read {}", app.get_config_ptr()->as<std::string>());
  const std::string name = full_name(*command);
  return fmt::format("{}{} annulus {}{}--help", text, text.ends_with('?') ? " See" : "; see", name,
                     name.empty() ? "" : " ");
}

void add_commands(CLI::App& app, Command& chosen) {
  app.set_help_flag("-h,--help", "Print this help");
  app.set_help_all_flag("--help-all", "Print this help with the options that few runs need");
  app.set_version_flag("--version", "annulus " + version(), "Print the version");
  app.set_config("--config", "", "TOML file with more options, in lines such as lr = 0.05")->type_name("FILE");
  app.formatter(help_formatter());
  app.config_formatter(flat_config(app));
  app.fallthrough();
  app.require_subcommand(0, 1);
  add_train(app, chosen);
  add_eval(app, chosen);
  add_checkpoint(app, chosen);
  add_control(app, chosen);
  add_predict(app, chosen);
  add_generate(app, chosen);
  add_export(app, chosen);
  add_import(app, chosen);
  add_bench(app, chosen);
  add_predict_scaling(app, chosen);
  add_models(app, chosen);
  add_doctor(app, chosen);
}

Command parse_command_line(int argc, char** argv, bool speaks) {
  CLI::App app(
      "Synchronous data-parallel training, as one process or with several ranks under mpirun or srun.\n"
      "annulus COMMAND --help lists a command's options.",
      "annulus");
  Command chosen;
  add_commands(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    // CLI11 handles --help before it reports unknown arguments.
    if (const auto unknown = app.remaining(true); !unknown.empty()) refuse(app, CLI::ExtrasError(unknown), speaks);
    if (!speaks) std::exit(0);
    std::ostringstream text;
    app.exit(help, text);
    fmt::print("{}", text.str());
    const int status = status_after_output(0);
    report_job_status(status, 0);
    std::exit(status);
  } catch (const CLI::ParseError& error) {
    refuse(app, error, speaks);
  }
  if (!chosen.run && !chosen.run_without_mpi) {
    if (!speaks) std::exit(kUsageExitCode);
    fmt::print("{}", app.help());
    std::exit(status_after_output(kUsageExitCode));
  }
  arrange_output(chosen.reports_on_stdout, chosen.quiet);
  return chosen;
}

}  // namespace annulus
