#include "src/io/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/io/utf8.h"

namespace annulus {
namespace {

// Returns the size in bytes of the printable character at the start of `text`; 0 if there is none.
std::size_t character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t bytes = first_character(text).bytes;
  if (bytes == 0) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool is_control = first == 0xc2 && second < 0xa0;  // U+0080 to U+009f, which terminals interpret
  // Marks that change the text's direction or hide it: U+200b to U+200f, U+2028 to U+202e, U+2066 to U+2069.
  const auto third = static_cast<unsigned char>(bytes > 2 ? text[2] : 0);
  const bool is_mark =
      first == 0xe2 && ((second == 0x80 && ((third >= 0x8b && third <= 0x8f) || (third >= 0xa8 && third <= 0xae))) ||
                        (second == 0x81 && third >= 0xa6 && third <= 0xa9));
  return is_control || is_mark ? 0 : bytes;
}

std::string escape(char c) {
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  if (c == '\r') return "\\r";
  return fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = character(text);
    result += bytes > 0 ? std::string(text.substr(0, bytes)) : escape(text.front());
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return result;
}

std::string printable_lines(std::string_view text) {
  std::string result;
  while (true) {
    const std::size_t end = text.find('\n');
    result += printable(text.substr(0, end));
    if (end == std::string_view::npos) return result;
    result += '\n';
    text.remove_prefix(end + 1);
  }
}

}  // namespace annulus
