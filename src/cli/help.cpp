#include "src/cli/help.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string_view>
#include <vector>

namespace annulus {
namespace {

constexpr std::size_t kTextColumn = 28;  // where descriptions begin
constexpr char kUnbreakableSpace = '\x1f';

using Options = std::vector<const CLI::Option*>;

// Options that few runs need: only --help-all lists them.
constexpr std::array<std::string_view, 15> kRare{"--freeze-after", "--whiten",    "--lookahead",  "--instruction-set",
                                                 "--zero-init",    "--workers",   "--prefetch",   "--decode",
                                                 "--data-changed", "--min-ranks", "--lost-after", "--staleness",
                                                 "--servers",      "--outer",     "--take-over"};

// Returns the lines in `text`, broken at spaces and indented. In a table row breaks only the second column.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t gap = line.find("  ");
    const std::size_t second = gap == std::string::npos ? 0 : line.find_first_not_of(' ', gap);
    while (indent + line.size() > kHelpColumns) {
      const std::size_t space = line.rfind(' ', kHelpColumns - indent);
      if (space == std::string::npos || space < second) break;  // a word that is too long
      result += fmt::format("{:{}}{}\n", "", indent, line.substr(0, space));
      line = std::string(second, ' ') + line.substr(space + 1);
    }
    result += fmt::format("{:{}}{}\n", "", indent, line);
  }
  return result;
}

std::string entry(const std::string& name, const std::string& description) {
  std::string text = wrapped(description, kTextColumn);
  std::ranges::replace(text, kUnbreakableSpace, ' ');
  if (name.size() + 4 > kTextColumn) return fmt::format("  {}\n{}", name, text);
  return fmt::format("  {:{}}{}", name, kTextColumn - 2, text.substr(kTextColumn));
}

std::string describe(const CLI::Option& option) {
  std::string text = option.get_description();
  const std::string value = option.get_default_str();
  if (!value.empty())  // a table follows a colon
    text.insert(std::min(text.find(":\n"), text.size()), fmt::format(" (default:{}{})", kUnbreakableSpace, value));
  return text;
}

bool is_rare(const CLI::Option* option) {
  return std::ranges::find(kRare, option->get_name()) != kRare.end();
}

// Returns a group's options. The first group ends with the options that all commands share.
Options options_of(const CLI::App& app, const std::string& group, bool all) {
  Options options = app.get_options([&](const CLI::Option* option) {
    return option->nonpositional() && option->get_group() == group && option != app.get_help_ptr() &&
           option != app.get_help_all_ptr() && (all || !is_rare(option));
  });
  if (group != app.get_help_ptr()->get_group()) return options;
  for (const CLI::App* parent = app.get_parent(); parent != nullptr; parent = parent->get_parent())
    if (parent->get_config_ptr() != nullptr) options.push_back(parent->get_config_ptr());
  options.push_back(app.get_help_ptr());
  if (!app.get_options(is_rare).empty()) options.push_back(app.get_help_all_ptr());
  return options;
}

std::string list(const std::string& title, const Options& options) {
  std::string text = fmt::format("\n{}:\n", title);
  for (const CLI::Option* option : options) text += entry(usage_of(*option), describe(*option));
  return text;
}

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    const Options arguments = app->get_options([](const CLI::Option* option) { return option->get_positional(); });
    const std::vector<const CLI::App*> commands = app->get_subcommands([](const CLI::App*) { return true; });
    std::string usage = "Usage: " + name;
    if (!commands.empty()) usage += " COMMAND";
    for (const CLI::Option* argument : arguments) usage += ' ' + usage_of(*argument);
    for (const CLI::Option* option : app->get_options({}))
      if (option->get_required() && !option->get_positional()) usage += ' ' + usage_of(*option);
    std::string text = wrapped(app->get_description(), 0) + '\n' + wrapped(usage + " [OPTIONS]", 0);
    if (!commands.empty()) text += "\nCommands:\n";
    for (const CLI::App* command : commands) {
      const std::string description = command->get_description();
      text += entry(command->get_name(), description.substr(0, description.find('\n')));
    }
    if (!arguments.empty()) text += list("Arguments", arguments);
    for (const std::string& group : app->get_groups())
      if (!group.empty()) text += list(group, options_of(*app, group, mode == CLI::AppFormatMode::All));
    return text;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  return std::make_shared<HelpFormatter>();
}

std::string usage_of(const CLI::Option& option) {
  static const std::map<std::string, std::string> kValues{
      {"INT", "N"}, {"UINT", "N"}, {"FLOAT", "X"}, {"TEXT", "NAME"}};
  const std::string name = option.get_name(option.get_positional(), true);
  const int least = option.get_items_expected_min(), most = option.get_items_expected_max();
  if (most == 0) return name;  // a flag
  const auto known = kValues.find(option.get_type_name());
  const std::string value = option.get_positional()  ? name
                            : known == kValues.end() ? option.get_type_name()
                                                     : known->second;
  std::string values = value;
  if (option.get_delimiter() == '\0') {
    for (int i = 1; i < least; ++i) values += ' ' + value;
    if (most > least) values += "...";
  } else if (option.get_delimiter() == ',') {
    values += ",...";
  }
  return option.get_positional() ? values : name + ' ' + values;
}

}  // namespace annulus
