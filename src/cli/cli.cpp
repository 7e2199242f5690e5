#include "src/cli/cli.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "kernels/base/error.h"
#include "src/cli/commands.h"
#include "src/cli/numbers.h"
#include "src/cli/toml.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

constexpr int kUsageExitCode = 2;

bool is_flag(const CLI::Option& option) {
  return option.get_expected_max() == 0;
}

// False for a list in one string, such as 28x28x1.
bool is_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return option.get_delimiter() == '\0' && (type == "INT" || type == "UINT" || type == "FLOAT");
}

// A configuration file is a flat TOML file. Its keys are the options of the command, without the dashes.
class FlatConfig : public CLI::Config {
 public:
  explicit FlatConfig(const CLI::App& app) : app_(app) {}

  // Returns a line key=value for every option.
  std::string to_config(const CLI::App* command, bool default_also, bool, std::string) const override {
    std::string text;
    for (const CLI::Option* option : command->get_options({})) {
      if (!option->get_configurable() || option->get_positional()) continue;
      std::vector<std::string> values = option->reduced_results();
      if (values.empty() && default_also && is_flag(*option)) values = {"false"};
      if (values.empty() && default_also && !option->get_default_str().empty()) values = {option->get_default_str()};
      if (values.empty()) continue;
      if (!is_flag(*option) && !is_number(*option)) std::ranges::transform(values, values.begin(), toml_string);
      const std::string list = fmt::format("{}", fmt::join(values, ", "));
      text += option->get_single_name() + '=' + (values.size() == 1 ? list : '[' + list + ']') + '\n';
    }
    return text;
  }

  // Sets the options that are not on the command line. Errors have the file and line. Returns no items because nothing
  // is left for CLI11 to do.
  std::vector<CLI::ConfigItem> from_config(std::istream& stream) const override {
    if (app_.get_subcommands().empty()) return {};  // nothing to run
    const std::string file = app_.get_config_ptr()->results().back();
    CLI::App* command = app_.get_subcommands().front();
    while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
    try {
      for (const TomlEntry& entry : read_toml(stream, file)) {
        try {
          set(*command, entry);
        } catch (const CLI::ParseError& error) {
          fail("{}:{}: {}", file, entry.line, error.what());
        }
      }
    } catch (const Error& error) {
      throw CLI::ConfigError(error.what(), CLI::ExitCodes::ConfigError);
    }
    return {};
  }

 private:
  static void set(CLI::App& command, const TomlEntry& entry) {
    CLI::Option* option = find(command, entry.key);
    if (option == nullptr)
      throw CLI::ConfigError(fmt::format("{}: annulus {} has no such option for a configuration", in_quotes(entry.key),
                                         command.get_name()),
                             CLI::ExitCodes::ConfigError);
    expect_type(*option, entry);
    if (option->count() > 0) return;  // the command line has precedence
    for (const std::string& value : entry.values) option->add_result(value);
    option->run_callback();
  }

  static CLI::Option* find(CLI::App& command, const std::string& key) {
    for (CLI::Option* option : command.get_options())
      if (option->get_configurable() && !option->get_positional() && option->get_single_name() == key) return option;
    return nullptr;
  }

  static void expect_type(const CLI::Option& option, const TomlEntry& entry) {
    using Type = TomlEntry::Type;
    const bool is_text = option.get_type_name() == "TEXT";
    const bool fits = is_flag(option)     ? entry.type == Type::truth
                      : is_number(option) ? entry.type == Type::number
                      : is_text           ? entry.type == Type::text
                                          : entry.type != Type::truth;
    const char* const expected = is_flag(option)     ? "true or false"
                                 : is_number(option) ? "a number"
                                 : is_text           ? "a text in quotes"
                                                     : "a number, or a text in quotes";
    if (!fits) throw CLI::ConversionError(option.get_name() + ": expected " + expected);
    if (entry.is_array && option.get_items_expected_max() <= 1)
      throw CLI::ConversionError(option.get_name() + ": takes one value, not a list");
  }

  const CLI::App& app_;
};

[[noreturn]] void refuse(const CLI::ParseError& error, bool speaks) {
  if (speaks) fmt::print(stderr, "annulus: {}; see annulus --help\n", printable_lines(error.what()));
  std::exit(kUsageExitCode);
}

}  // namespace

void add_commands(CLI::App& app, Command& chosen) {
  app.set_version_flag("--version", std::string("annulus ") + ANNULUS_VERSION);
  app.set_config("--config", "", "TOML file with options of the command, in lines such as lr = 0.05");
  app.config_formatter(std::make_shared<FlatConfig>(app));
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
