#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace annulus {

// The reader and writer of configurations: flat TOML files whose keys are the options of a command, without the dashes.
// What the command line has takes precedence over the file given with the option --config of `app`.
std::shared_ptr<CLI::Config> flat_config(const CLI::App& app);

}  // namespace annulus
