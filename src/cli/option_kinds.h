#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace annulus {

// Adds an option whose value is a list, parsed one by one; "none" is an empty list.
template <class T, class Parse>
CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<T>& values, const Parse& parse,
                             const std::string& help) {
  const auto parse_all = [&values, parse](const std::vector<std::string>& texts) {
    values.clear();
    if (texts != std::vector<std::string>{"none"}) std::ranges::transform(texts, std::back_inserter(values), parse);
  };
  return command.add_option_function<std::vector<std::string>>(name, parse_all, help)
      ->delimiter(',')
      ->default_str("none");
}

// Adds an option for a text that `parse` converts, or rejects with Error.
template <class T, class Parse>
CLI::Option* add_parsed_option(CLI::App& command, const std::string& name, T& value, const Parse& parse,
                               const std::string& help) {
  const auto convert = [&value, name, parse](const std::string& text) {
    try {
      value = parse(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(name, error.what());
    }
  };
  return command.add_option_function<std::string>(name, convert, help);
}

}  // namespace annulus
