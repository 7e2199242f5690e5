#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// Formats a size in the largest binary unit that keeps the number at 1 or more: "4 KiB", "1.5 MiB", "1000 B".
std::string format_bytes(std::size_t bytes);

}  // namespace annulus
