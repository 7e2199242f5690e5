#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/text/word_splitter.h"

namespace annulus {

// A key for a pair of tokens.
inline std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

// Translates between texts, which are any bytes, and tokens: GPT-2's byte-level byte pair encoding. A word's bytes (see
// WordSplitter) are tokens, and pairs of adjacent tokens are merged, in the order of a list of merges. Without merges
// the tokens are the bytes. A further token ends each text.
//
//   const Tokenizer tokenizer = gpt2_tokenizer("gpt2");
//   tokenizer.decode(tokenizer.encode(text)) == text  // for every text
class Tokenizer {
 public:
  struct Merge {
    std::int32_t left, right, merged;
  };

  // `bytes`: each byte's token. Throws Error unless the tokens are 0 up to their count, each with a single meaning, and
  // merges use tokens defined before.
  Tokenizer(std::string name, const std::array<std::int32_t, 256>& bytes, std::vector<Merge> merges,
            std::int32_t end_of_text);

  const std::string& name() const { return name_; }
  std::size_t vocabulary() const { return texts_.size(); }  // token count
  std::int32_t end_of_text() const { return end_of_text_; }

  std::vector<std::int32_t> encode(std::string_view text) const;                     // without the end of the text
  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const;  // appends

  // Tokens that mark a text's end, or that are out of range, have no bytes.
  std::string decode(std::span<const std::int32_t> tokens) const;
  std::string_view bytes_of(std::int32_t token) const;

  // JSON, for data files and checkpoints. parse() throws Error if the text is not what serialized() returned.
  std::string serialized() const;
  static Tokenizer parse(const std::string& serialized);

 private:
  void define(std::int32_t token, std::string text);

  std::string name_;
  std::array<std::int32_t, 256> bytes_;
  std::vector<Merge> merges_;
  std::int32_t end_of_text_;
  std::vector<std::string> texts_;                        // for each token
  std::unordered_map<std::uint64_t, std::size_t> ranks_;  // for a pair: the first merge
};

// Encodes texts that arrive in pieces of any size. For a single thread: it keeps frequent words' tokens.
class TextEncoder {
 public:
  explicit TextEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Both append to `tokens`; finish() appends the rest of the text and the token that ends it.
  void add(std::string_view text, std::vector<std::int32_t>& tokens);
  void finish(std::vector<std::int32_t>& tokens);

  std::uint64_t invalid_bytes() const { return splitter_.invalid_bytes(); }  // see WordSplitter

 private:
  void encode(std::string_view word, std::vector<std::int32_t>& tokens);

  const Tokenizer& tokenizer_;
  WordSplitter splitter_;
  WordMap<std::vector<std::int32_t>> known_;
};

Tokenizer bytes_tokenizer();  // 256 bytes, and 256 to end a text

// Reads encoder.json and vocab.bpe, the files that OpenAI released with GPT-2, or vocab.json and merges.txt, as Hugging
// Face names them. Throws Error naming the file and the problem.
Tokenizer gpt2_tokenizer(const std::filesystem::path& folder);

}  // namespace annulus
