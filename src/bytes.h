#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace annulus {

// "1000", "1000B", "4KB" (4000), "4KiB" (4096), and so on up to GB and GiB. Throws Error for anything else.
std::size_t parse_bytes(std::string_view text);

// In the largest binary unit that keeps it at 1 or more: "4 KiB", "1.5 MiB", "1000 B".
std::string format_bytes(std::size_t bytes);

}  // namespace annulus
