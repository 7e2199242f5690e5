#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace annulus::test {

// A data file of text with one split, "train", every part of which can be changed. By default it is valid: one document
// of `size` tokens, token i being i modulo 1000.
struct TokenFile {
  explicit TokenFile(std::size_t size);

  std::vector<std::uint32_t> tokens;
  std::vector<std::int64_t> documents;
  std::size_t bytes_each = 2;  // of a stored token: 1, 2 or 4
  std::uint64_t vocabulary = 1000;
  std::string tokenizer;         // none if it is empty
  std::uint64_t text_bytes = 0;  // as for tokenizer
  bool is_compressed = false;

  void write(const std::filesystem::path& file) const;
};

}  // namespace annulus::test
