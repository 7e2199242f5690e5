#pragma once

#include <cstddef>
#include <string_view>

namespace annulus {

struct Utf8Character {
  std::size_t bytes;   // 0: not valid UTF-8
  bool is_incomplete;  // the text ends within it
};

// Returns a text's first character. REQUIRES: the text is not empty.
inline Utf8Character first_character(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, false};
  if (first < 0xc2 || first > 0xf4) return {0, false};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  // Overlong forms, surrogates, and code points beyond the last have a second byte outside these ranges.
  const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < bytes; ++i) {
    if (i == text.size()) return {0, true};
    if (byte(i) < (i == 1 ? least : 0x80) || byte(i) > (i == 1 ? most : 0xbf)) return {0, false};
  }
  return {bytes, false};
}

}  // namespace annulus
