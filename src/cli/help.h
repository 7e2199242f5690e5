#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace annulus {

constexpr std::size_t kHelpColumns = 100;

// Formats the help of commands in lines of at most kHelpColumns columns. The first line of a command's description
// stands in the list of commands. In a description of several lines "name  text" is a row of a table.
std::shared_ptr<CLI::FormatterBase> help_formatter();

// Returns an option with its values, as "--image HxWxC", "--data FILE..." or, if it is positional, "SOURCE".
std::string usage_of(const CLI::Option& option);

}  // namespace annulus
