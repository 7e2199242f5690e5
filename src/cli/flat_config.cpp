#include "src/cli/flat_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "src/cli/choices.h"
#include "src/cli/commands.h"
#include "src/cli/numbers.h"
#include "src/cli/toml.h"
#include "src/train/renamed_options.h"

namespace annulus {
namespace {

bool is_flag(const CLI::Option& option) {
  return option.get_expected_max() == 0;
}

// Returns false for a list in a single string, such as 28x28x1.
bool is_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return option.get_delimiter() == '\0' && (type == "INT" || type == "UINT" || type == "FLOAT");
}

bool is_excluded(const CLI::Option& option) {
  return std::ranges::any_of(option.get_excludes(), [](const CLI::Option* other) { return other->count() > 0; });
}

bool is_on_command_line(const CLI::Option& option) {
  return option.count() > 0 || is_excluded(option);
}

CLI::Option& find(CLI::App& command, const TomlEntry& entry) {
  std::vector<std::string> keys;
  for (CLI::Option* option : command.get_options()) {
    if (!option->get_configurable() || option->get_positional()) continue;
    if (option->get_single_name() == entry.key) return *option;
    keys.push_back(option->get_single_name());
  }
  fail("annulus {} has no setting {}{}", full_name(command), in_quotes(entry.key), did_you_mean(entry.key, keys));
}

void expect_type(const CLI::Option& option, const TomlEntry& entry) {
  using Type = TomlEntry::Type;
  const std::string name = option.get_type_name();
  const bool is_text = name == "TEXT" || name == "FILE" || name == "FOLDER";
  const bool fits = is_flag(option)     ? entry.type == Type::truth
                    : is_number(option) ? entry.type == Type::number
                    : is_text           ? entry.type == Type::text
                                        : entry.type != Type::truth;
  const char* const expected = is_flag(option)     ? "true or false"
                               : is_number(option) ? "a number"
                               : is_text           ? "a text in quotes"
                                                   : "a number, or a text in quotes";
  if (!fits) fail("{}: expected {}", option.get_name(), expected);
  if (entry.is_array && option.get_items_expected_max() <= 1)
    fail("{}: takes one value, not a list", option.get_name());
}

// Throws Error if a file's learning rate, which is for the file's optimizer, would meet another optimizer from the
// command line.
void expect_rate_for_optimizer(const CLI::App& command, const TomlEntry& entry, const std::vector<TomlEntry>& entries) {
  const auto optimizer = std::ranges::find(entries, "optimizer", &TomlEntry::key);
  if (entry.key != "lr" || command.count("--lr") > 0 || optimizer == entries.end()) return;
  const std::vector<std::string>& chosen = command.get_option("--optimizer")->results();
  const std::string before = optimizer->values.front().substr(0, optimizer->values.front().find(','));
  if (!chosen.empty() && chosen.front() != before)
    fail("lr is for the optimizer {}: with --optimizer {} also give --lr", before, chosen.front());
}

// Rewrites options of earlier versions in their present form.
void replace_renamed(std::vector<TomlEntry>& entries, const std::string& file) {
  const auto find = [&](std::string_view key) { return std::ranges::find(entries, key, &TomlEntry::key); };
  const std::vector<std::string> unknown = merge_renamed([&](std::string_view option) {
    const auto entry = find(option);
    return entry == entries.end() ? nullptr : &entry->values;
  });
  if (!unknown.empty()) fail("{}:{}: {}", file, find(unknown.front())->line, find_renamed(unknown.front())->message());
  std::erase_if(entries, [](const TomlEntry& entry) { return find_renamed(entry.key) != nullptr; });
}

class FlatConfig : public CLI::Config {
 public:
  explicit FlatConfig(const CLI::App& app) : app_(app) {}

  // Returns a line key=value for every option that no other option excludes; not for flags that have a default and are
  // not given.
  std::string to_config(const CLI::App* command, bool default_also, bool, std::string) const override {
    std::string text;
    for (const CLI::Option* option : command->get_options({})) {
      if (!option->get_configurable() || option->get_positional() || is_excluded(*option)) continue;
      std::vector<std::string> values = option->reduced_results();
      const bool has_default = !option->get_default_str().empty();
      if (values.empty() && default_also && is_flag(*option) != has_default)
        values = {has_default ? option->get_default_str() : "false"};
      if (values.empty()) continue;
      if (!is_flag(*option) && !is_number(*option)) std::ranges::transform(values, values.begin(), toml_string);
      const std::string list = fmt::format("{}", fmt::join(values, ", "));
      text += option->get_single_name() + '=' + (values.size() == 1 ? list : '[' + list + ']') + '\n';
    }
    return text;
  }

  // Sets the options. Errors name file and line. Returns no items because nothing is left for CLI11 to do.
  std::vector<CLI::ConfigItem> from_config(std::istream& stream) const override {
    if (app_.get_subcommands().empty()) return {};  // nothing to run
    const std::string file = app_.get_config_ptr()->results().back();
    CLI::App* command = app_.get_subcommands().front();
    while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
    try {
      read(read_toml(stream, file), file, *command);
    } catch (const Error& error) {
      throw CLI::ConfigError(error.what(), CLI::ExitCodes::ConfigError);
    }
    return {};
  }

 private:
  static void read(std::vector<TomlEntry> entries, const std::string& file, CLI::App& command) {
    replace_renamed(entries, file);
    std::vector<std::pair<CLI::Option*, const TomlEntry*>> taken;
    for (const TomlEntry& entry : entries) {
      try {
        CLI::Option& option = find(command, entry);
        expect_type(option, entry);
        expect_rate_for_optimizer(command, entry, entries);
        if (!is_on_command_line(option)) taken.emplace_back(&option, &entry);
      } catch (const Error& error) {
        fail("{}:{}: {}", file, entry.line, error.what());
      }
    }
    for (const auto& [option, entry] : taken) {
      try {
        for (const std::string& value : entry->values) option->add_result(value);
        option->run_callback();
      } catch (const CLI::ParseError& error) {
        fail("{}:{}: {}", file, entry->line, error.what());
      }
    }
  }

  const CLI::App& app_;
};

}  // namespace

std::shared_ptr<CLI::Config> flat_config(const CLI::App& app) {
  return std::make_shared<FlatConfig>(app);
}

}  // namespace annulus
