#include "src/bytes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "kernels/error.h"

namespace annulus {

namespace {

struct Unit {
  std::string_view name;
  std::size_t bytes;
};

constexpr std::size_t kKiB = 1024, kKB = 1000;
constexpr std::array kUnits = {Unit{"", 1},
                               Unit{"B", 1},
                               Unit{"KB", kKB},
                               Unit{"MB", kKB* kKB},
                               Unit{"GB", kKB* kKB* kKB},
                               Unit{"KiB", kKiB},
                               Unit{"MiB", kKiB* kKiB},
                               Unit{"GiB", kKiB* kKiB* kKiB}};
constexpr std::array kBinaryUnits = {Unit{"GiB", kKiB* kKiB* kKiB}, Unit{"MiB", kKiB* kKiB}, Unit{"KiB", kKiB}};

}  // namespace

std::size_t parse_bytes(std::string_view text) {
  std::size_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [unit_begin, error] = std::from_chars(text.data(), end, count);
  const auto unit = std::ranges::find(kUnits, std::string_view(unit_begin, end), &Unit::name);
  if (error != std::errc() || unit == kUnits.end() || count > std::numeric_limits<std::size_t>::max() / unit->bytes)
    fail("'{}' is not a size in bytes; write it like 1000, 4KB, 4KiB or 64MiB", text);
  return count * unit->bytes;
}

std::string format_bytes(std::size_t bytes) {
  for (const Unit& unit : kBinaryUnits)
    if (bytes >= unit.bytes)
      return fmt::format("{:.4g} {}", static_cast<double>(bytes) / static_cast<double>(unit.bytes), unit.name);
  return fmt::format("{} B", bytes);
}

}  // namespace annulus
