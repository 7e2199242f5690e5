#pragma once

#include <cstdint>
#include <string_view>

#include "src/text/tokenizer.h"

namespace annulus {

// Learns the merges of a tokenizer from texts: in each step, of all pairs of adjacent tokens within words the most
// frequent one becomes a token (Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units",
// ACL 2016). Of equally frequent pairs the one with the lower tokens. The result depends on the texts only.
class TokenizerTrainer {
 public:
  // A text, in pieces of any size, as for WordSplitter.
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
