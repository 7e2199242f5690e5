#pragma once

#include <cstdint>
#include <string_view>

#include "src/text/tokenizer.h"

namespace annulus {

// Learns a tokenizer's merges from texts: in each step, the most frequent pair of adjacent tokens within words becomes
// a token (Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units", ACL 2016). Among
// equally frequent pairs the pair with the lower tokens does. The result depends on the texts only.
class TokenizerTrainer {
 public:
  // Adds a text, in pieces of any size, as for WordSplitter.
  void add(std::string_view text);
  void finish();

  // Tokens 0 to 255 are the bytes, then come the merges, and last the end of a text. Fewer tokens than `vocabulary` if
  // no pair of tokens occurs twice. REQUIRES: vocabulary >= kFewestTokens.
  Tokenizer train(std::size_t vocabulary) const;
  static constexpr std::size_t kFewestTokens = 257;

 private:
  void count(std::string_view word);

  WordSplitter splitter_;
  WordMap<std::int64_t> words_;  // and how often they occur
};

}  // namespace annulus
