#include "src/text/word_splitter.h"

#include "kernels/base/error.h"
#include "src/io/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace annulus {
namespace {

constexpr std::size_t kMostCharacterBytes = 4;
constexpr std::size_t kPortion = std::size_t{1} << 18;

// GPT-2's expression. White space is spelled out because libraries differ in what \s is: here it is Unicode's property
// White_Space. Possessive repeats (++) match the same and need no stack.
#define WHITE_SPACE \
  R"(\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr const char* kWord = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}++| ?\p{N}++| ?[^\p{L}\p{N})" WHITE_SPACE
                              R"(]++|[)" WHITE_SPACE R"(]+(?![^)" WHITE_SPACE R"(])|[)" WHITE_SPACE R"(]+)";
#undef WHITE_SPACE

// The text's longest beginning that is valid UTF-8, and whether the text ends within a character after it.
struct ValidPart {
  std::size_t bytes;
  bool is_incomplete;
};

ValidPart valid_part(std::string_view text) {
  std::size_t valid = 0;
  while (valid < text.size()) {
    const Utf8Character found = first_character(text.substr(valid));
    if (found.bytes == 0) return {valid, found.is_incomplete};
    valid += found.bytes;
  }
  return {valid, false};
}

// Returns a word's largest part, at most WordSplitter::kMostWordBytes, that ends between characters.
std::size_t cut_word(std::string_view word) {
  std::size_t end = WordSplitter::kMostWordBytes;
  while ((static_cast<unsigned char>(word[end]) & 0xc0) == 0x80) --end;
  return end;
}

}  // namespace

struct WordSplitter::Expression {
  Expression() {
    int error = 0;
    PCRE2_SIZE at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kWord), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED, &error,
                         &at, nullptr);
    if (code == nullptr) fail("PCRE2 {}.{} cannot compile the expression of words", PCRE2_MAJOR, PCRE2_MINOR);
    // Without a compiler for this processor it is interpreted.
    static_cast<void>(pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD));
    match = pcre2_match_data_create_from_pattern(code, nullptr);
    if (match == nullptr) fail("PCRE2: out of memory");
  }
  ~Expression() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
  Expression(const Expression&) = delete;

  pcre2_code* code;
  pcre2_match_data* match;
};

WordSplitter::WordSplitter() : expression_(std::make_unique<const Expression>()) {}
WordSplitter::~WordSplitter() = default;

void WordSplitter::add(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const std::string_view portion = text.substr(0, kPortion);
    text_ += portion;
    split(false, take);
    text.remove_prefix(portion.size());
  }
}

void WordSplitter::finish(const Take& take) {
  split(true, take);
}

void WordSplitter::split(bool ends, const Take& take) {
  std::string_view left = text_;
  while (!left.empty()) {
    const ValidPart valid = valid_part(left);
    const bool waits = !ends && (valid.is_incomplete || valid.bytes == left.size());
    left.remove_prefix(split_valid(left.substr(0, valid.bytes), !waits, take));
    if (waits) break;
    if (left.empty()) break;
    take(left.substr(0, 1));
    ++invalid_bytes_;
    left.remove_prefix(1);
  }
  text_.erase(0, text_.size() - left.size());
}

std::size_t WordSplitter::split_valid(std::string_view text, bool ends, const Take& take) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(expression_->match);
  std::size_t begin = 0;
  while (begin < text.size()) {
    const int result = pcre2_match(expression_->code, subject, text.size(), begin,
                                   PCRE2_NO_UTF_CHECK | (ends ? 0 : PCRE2_PARTIAL_HARD), expression_->match, nullptr);
    std::size_t bytes = found[1] - begin;
    if (result == PCRE2_ERROR_PARTIAL) {
      // Every word that may go on ends at most a character before the end.
      if (text.size() - begin <= kMostWordBytes + kMostCharacterBytes) return begin;
      bytes = text.size() - begin - kMostCharacterBytes;
    } else if (result < 0) {
      fail("PCRE2 cannot match words: error {}", result);
    }
    if (bytes > kMostWordBytes) bytes = cut_word(text.substr(begin));
    take(text.substr(begin, bytes));
    begin += bytes;
  }
  return begin;
}

}  // namespace annulus
