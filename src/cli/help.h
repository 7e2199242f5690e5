#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace annulus {

constexpr std::size_t kHelpColumns = 100;

// Formats commands' help in lines with at most kHelpColumns columns. Lists commands with the description's first line.
// In a description with several lines "name  text" is a table row.
std::shared_ptr<CLI::FormatterBase> help_formatter();

// Returns an option with values, as "--image HxWxC", "--data FILE..." or, if positional, "SOURCE".
std::string usage_of(const CLI::Option& option);

}  // namespace annulus
