#include "src/io/bytes.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace annulus {

std::string format_bytes(std::size_t bytes) {
  constexpr std::array<std::string_view, 3> units{"GiB", "MiB", "KiB"};
  std::size_t unit_bytes = std::size_t{1} << 30;
  for (const auto unit : units) {
    if (bytes >= unit_bytes)
      return fmt::format("{:.4g} {}", static_cast<double>(bytes) / static_cast<double>(unit_bytes), unit);
    unit_bytes >>= 10;
  }
  return fmt::format("{} B", bytes);
}

}  // namespace annulus
