#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace annulus {

// A choice with settings, such as --optimizer sgd,momentum=0.8,nesterov:
//
//   Settings settings("--optimizer", texts, {"sgd", "adamw"});
//   if (settings.name() == "sgd") momentum = settings.number("momentum", 0.9, number_from(0, 1));
//   settings.expect_no_other();
//
// All functions throw CLI::ValidationError.
class Settings {
 public:
  // `texts`: the option's values, first a name in `choices`.
  Settings(std::string option, const std::vector<std::string>& texts, const std::vector<std::string>& choices);

  const std::string& name() const { return name_; }

  double number(const std::string& key, double initial, const CLI::Validator& validator);
  bool flag(const std::string& key);

  // Returns a setting's value; none if it is not given.
  std::optional<std::string> text(const std::string& key);

  // Throws if a setting was given that no function was called for.
  void expect_no_other() const;

 private:
  std::string option_, name_;
  std::vector<std::pair<std::string, std::optional<std::string>>> left_;
  std::vector<std::string> known_;  // keys
};

// Adds an option for a choice with settings, which `parse` gets as texts.
CLI::Option* add_settings_option(CLI::App& command, const std::string& name,
                                 const std::function<void(const std::vector<std::string>&)>& parse,
                                 const std::string& help);

}  // namespace annulus
