#include "src/cli/settings.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "src/cli/choices.h"
#include "src/cli/numbers.h"

namespace annulus {

Settings::Settings(std::string option, const std::vector<std::string>& texts, const std::vector<std::string>& choices)
    : option_(std::move(option)), name_(texts.front()) {
  if (const std::string complaint = one_of(choices)(name_); !complaint.empty()) {
    const bool is_setting = name_.find('=') != std::string::npos;
    throw CLI::ValidationError(
        option_, is_setting ? fmt::format("expected a name before {}, such as {}", in_quotes(name_), choices.front())
                            : complaint);
  }
  std::for_each(texts.begin() + 1, texts.end(), [this](const std::string& text) {
    const std::size_t equals = text.find('=');
    std::optional<std::string> value;
    if (equals != std::string::npos) value = text.substr(equals + 1);
    const std::string key = text.substr(0, equals);
    for (const auto& [other, _] : left_)
      if (other == key) throw CLI::ValidationError(option_, fmt::format("{} is given twice", key));
    left_.emplace_back(key, value);
  });
}

std::optional<std::string> Settings::text(const std::string& key) {
  known_.push_back(key);
  const auto found = std::ranges::find(left_, key, [](const auto& setting) { return setting.first; });
  if (found == left_.end()) return std::nullopt;
  const std::optional<std::string> value = found->second;
  if (!value) throw CLI::ValidationError(option_, fmt::format("{0} needs a value: {0}=...", key));
  left_.erase(found);
  return value;
}

double Settings::number(const std::string& key, double initial, const CLI::Validator& validator) {
  const std::optional<std::string> value = text(key);
  return value ? parse_number(option_ + ' ' + key, *value, validator) : initial;
}

bool Settings::flag(const std::string& key) {
  known_.push_back(key);
  const auto found = std::ranges::find(left_, key, [](const auto& setting) { return setting.first; });
  if (found == left_.end()) return false;
  if (found->second) throw CLI::ValidationError(option_, fmt::format("{} takes no value", key));
  left_.erase(found);
  return true;
}

void Settings::expect_no_other() const {
  if (left_.empty()) return;
  const auto& [key, value] = left_.front();
  const std::string text = value ? key + '=' + *value : key;
  throw CLI::ValidationError(
      option_, known_.empty()
                   ? fmt::format("{} has no settings, such as {}", name_, in_quotes(text))
                   : fmt::format("{} has the settings {}, not {}", name_, fmt::join(known_, ", "), in_quotes(text)));
}

CLI::Option* add_settings_option(CLI::App& command, const std::string& name,
                                 const std::function<void(const std::vector<std::string>&)>& parse,
                                 const std::string& help) {
  return command.add_option_function<std::vector<std::string>>(name, parse, help)->delimiter(',')->type_name("NAME");
}

}  // namespace annulus
