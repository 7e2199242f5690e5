#pragma once

#include <filesystem>
#include <string>

namespace annulus {

// Returns the first line of a file in /sys, which may change with each read. Throws Error with the system's reason.
std::string read_counter_file(const std::filesystem::path& file);

}  // namespace annulus
