#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "src/train/interval.h"

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

CLI::Option* add_interval_option(CLI::App& command, const std::string& name, Interval& interval,
                                 const std::string& help,
                                 const std::function<Interval(const std::string&)>& parse_text = parse_interval);

}  // namespace annulus
