#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "src/cli/cli.h"

namespace annulus {

// Adds all commands, and the --config reader.
void add_commands(CLI::App& app, Command& chosen);

// Returns "train", or "bench step".
std::string full_name(const CLI::App& command);

// Returns the message for a parsing error, a line that ends with the help to see.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

// Add a command and the command's options. Parsing stores the command in `chosen` if the command line has it.
void add_train(CLI::App& app, Command& chosen);
void add_eval(CLI::App& app, Command& chosen);
void add_checkpoint(CLI::App& app, Command& chosen);
void add_control(CLI::App& app, Command& chosen);
void add_predict(CLI::App& app, Command& chosen);
void add_generate(CLI::App& app, Command& chosen);
void add_export(CLI::App& app, Command& chosen);
void add_import(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);
void add_predict_scaling(CLI::App& app, Command& chosen);
void add_models(CLI::App& app, Command& chosen);
void add_doctor(CLI::App& app, Command& chosen);

}  // namespace annulus
