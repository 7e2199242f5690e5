#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

namespace annulus {

// Cuts texts into words by GPT-2's rule: contractions ('s, 're), letters, digits or other characters with at most a
// single space before them, and the spaces between. Tokens never cross words. Words, put together, are the text.
//
// A text arrives in pieces of any size, and its words do not depend on them. Two differences from GPT-2 make any bytes
// a text: a byte outside valid UTF-8 is a word, and a word ends after kMostWordBytes.
class WordSplitter {
 public:
  using Take = std::function<void(std::string_view word)>;

  static constexpr std::size_t kMostWordBytes = 1 << 16;

  WordSplitter();
  ~WordSplitter();

  // Words that further bytes could belong to are kept until the next call.
  void add(std::string_view text, const Take& take);
  void finish(const Take& take);  // the text ends; the next call to add() begins another text

  // Returns how many bytes were outside valid UTF-8, in all texts so far.
  std::uint64_t invalid_bytes() const { return invalid_bytes_; }

 private:
  struct Expression;

  void split(bool ends, const Take& take);
  // Returns how many bytes were taken from a valid part of the text; `ends`: no character follows.
  std::size_t split_valid(std::string_view text, bool ends, const Take& take);

  std::unique_ptr<const Expression> expression_;
  std::string text_;  // not yet taken
  std::uint64_t invalid_bytes_ = 0;
};

struct HashOfWord {
  using is_transparent = void;
  std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};

// By word, found without copying it.
template <class Value>
using WordMap = std::unordered_map<std::string, Value, HashOfWord, std::equal_to<>>;

}  // namespace annulus
