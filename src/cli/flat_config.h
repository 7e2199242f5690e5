#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace annulus {

// Returns a reader and writer for configurations: flat TOML files whose keys are a command's options, without the
// dashes. The command line takes precedence over the file that `app`'s option --config names.
std::shared_ptr<CLI::Config> flat_config(const CLI::App& app);

}  // namespace annulus
