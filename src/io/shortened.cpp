#include "src/io/shortened.h"

#include <fmt/format.h>

namespace annulus {
namespace {

// Keeps text of at most `most` bytes; from longer text keeps the first two thirds and the end. Characters stay whole.
std::string with_gap(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  const auto within_character = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  std::size_t begin = most * 2 / 3, end = text.size() - (most - begin);
  while (begin > 0 && within_character(begin)) --begin;
  while (end < text.size() && within_character(end)) ++end;
  return fmt::format("{}...[{} bytes]...{}", text.substr(0, begin), end - begin, text.substr(end));
}

// Applies `change` to the parts between the separators.
template <class Change>
std::string each_part(std::string_view text, char separator, const Change& change) {
  std::string result;
  while (true) {
    const std::size_t end = text.find(separator);
    result += change(text.substr(0, end));
    if (end == std::string_view::npos) return result;
    result += separator;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string shortened(std::string_view text) {
  constexpr std::size_t kWord = 300, kLine = 1000;
  return each_part(text, '\n', [](std::string_view line) {
    return with_gap(each_part(line, ' ', [](std::string_view word) { return with_gap(word, kWord); }), kLine);
  });
}

}  // namespace annulus
