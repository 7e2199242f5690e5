#include "src/text/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "kernels/base/error.h"
#include "src/io/json.h"
#include "src/io/printable.h"

namespace annulus {
namespace {

constexpr std::size_t kMostTokens = std::size_t{1} << 24, kMostTextBytes = std::size_t{1} << 26;
constexpr std::size_t kMostKnownWords = 1 << 17, kMostKnownWordBytes = 64;

// Merges a word's tokens. All places with the lowest-ranked pair are merged, from left to right, before the pairs that
// arise are considered.
class WordMerger {
 public:
  WordMerger(const std::vector<Tokenizer::Merge>& merges, const std::unordered_map<std::uint64_t, std::size_t>& ranks,
             std::span<std::int32_t> tokens)
      : merges_(merges), ranks_(ranks), tokens_(tokens), next_(tokens.size()), previous_(tokens.size()) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      next_[i] = i + 1;
      previous_[i] = i - 1;  // not used at the first
    }
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) add(i);
    std::ranges::make_heap(pairs_, std::greater());
  }

  // Returns how many tokens are left; they are moved to the beginning.
  std::size_t merge() {
    while (!pairs_.empty()) {
      const std::size_t rank = pairs_.front().rank;
      while (!pairs_.empty() && pairs_.front().rank == rank) {
        const std::size_t place = pairs_.front().place;
        std::ranges::pop_heap(pairs_, std::greater());
        pairs_.pop_back();
        merge_at(place, merges_[rank]);
      }
      for (const Pair& pair : waiting_) {
        pairs_.push_back(pair);
        std::ranges::push_heap(pairs_, std::greater());
      }
      waiting_.clear();
    }
    std::size_t count = 0;
    for (std::size_t i = 0; i < tokens_.size(); i = next_[i]) tokens_[count++] = tokens_[i];
    return count;
  }

 private:
  struct Pair {
    std::size_t rank, place;
    auto operator<=>(const Pair&) const = default;
  };

  std::optional<Pair> pair_at(std::size_t place) const {
    const auto found = ranks_.find(pair_key(tokens_[place], tokens_[next_[place]]));
    if (found == ranks_.end()) return {};
    return Pair{found->second, place};
  }

  void add(std::size_t place) {
    if (const auto pair = pair_at(place)) pairs_.push_back(*pair);
  }

  void merge_at(std::size_t place, const Tokenizer::Merge& merge) {
    // The pair may have been part of another merge.
    if (tokens_[place] != merge.left || next_[place] >= tokens_.size()) return;
    const std::size_t right = next_[place];
    if (tokens_[right] != merge.right) return;
    tokens_[place] = merge.merged;
    tokens_[right] = kGone;
    next_[place] = next_[right];
    if (next_[place] < tokens_.size()) {
      previous_[next_[place]] = place;
      wait(place);
    }
    if (place > 0) wait(previous_[place]);
  }

  void wait(std::size_t place) {
    if (const auto pair = pair_at(place)) waiting_.push_back(*pair);
  }

  static constexpr std::int32_t kGone = -1;

  const std::vector<Tokenizer::Merge>& merges_;
  const std::unordered_map<std::uint64_t, std::size_t>& ranks_;
  const std::span<std::int32_t> tokens_;
  std::vector<std::size_t> next_, previous_;
  std::vector<Pair> pairs_, waiting_;  // a heap; pairs that arose since the lowest rank in it was begun
};

// GPT-2's files spell each byte as a printable character: a byte that is printable in Latin-1 as itself, other bytes as
// the characters from U+0100 on. Returns each code point's byte.
std::unordered_map<std::uint32_t, std::uint8_t> bytes_by_character() {
  std::unordered_map<std::uint32_t, std::uint8_t> bytes;
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
    bytes[is_printable ? byte : next++] = static_cast<std::uint8_t>(byte);
  }
  return bytes;
}

// Returns the bytes that the files spell with this text; none if it has other characters.
std::optional<std::string> spelled_bytes(std::string_view text) {
  static const std::unordered_map<std::uint32_t, std::uint8_t> kBytes = bytes_by_character();
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint32_t character = static_cast<unsigned char>(text[i]);
    if (character >= 0xe0) return {};
    if (character >= 0xc0 && i + 1 < text.size())
      character = (character & 0x1f) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f);
    const auto byte = kBytes.find(character);
    if (byte == kBytes.end()) return {};
    bytes += static_cast<char>(byte->second);
  }
  return bytes;
}

std::filesystem::path either(const std::filesystem::path& folder, const char* name, const char* other) {
  if (std::filesystem::exists(folder / name)) return folder / name;
  if (std::filesystem::exists(folder / other)) return folder / other;
  fail("{}: missing (or {}): a folder with GPT-2's encoder.json and vocab.bpe is needed", (folder / name).string(),
       other);
}

// The tokens by their bytes, and the token that ends a text.
struct Vocabulary {
  std::unordered_map<std::string, std::int32_t> tokens;
  std::int32_t end_of_text = -1;

  std::int32_t of(const std::string& bytes) const {
    const auto found = tokens.find(bytes);
    return found == tokens.end() ? -1 : found->second;
  }
};

// A number that is not whole or too large would be another token's when it is converted.
std::int32_t token_number(const nlohmann::json& number, const std::string& what) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const bool fits = number.is_number_unsigned() ? number.get<std::uint64_t>() <= kMost
                                                : number.is_number_integer() && number.get<std::int64_t>() >= -kMost;
  if (!fits) fail("{}: its number is {}; it must be a whole number from 0 to {}", what, number.dump(), kMostTokens);
  return number.get<std::int32_t>();
}

std::vector<std::int32_t> token_numbers(const nlohmann::json& numbers) {
  std::vector<std::int32_t> all;
  for (const nlohmann::json& number : numbers)
    all.push_back(token_number(number, fmt::format("not a tokenizer: token {} of a list", all.size())));
  return all;
}

Vocabulary read_vocabulary(const std::filesystem::path& file) try {
  constexpr const char* kEndOfText = "<|endoftext|>";
  std::ifstream stream(file);
  if (!stream) fail("{}: cannot open", file.string());
  const nlohmann::json json = parse_json(stream);
  Vocabulary found;
  for (const auto& [text, number] : json.get<std::unordered_map<std::string, nlohmann::json>>()) {
    const std::int32_t token = token_number(number, fmt::format("{}: token '{}'", file.string(), printable(text)));
    if (text == kEndOfText) {
      found.end_of_text = token;
      continue;
    }
    const auto bytes = spelled_bytes(text);
    if (!bytes)
      fail("{}: token '{}' is neither bytes nor {}; only these are supported", file.string(), text, kEndOfText);
    found.tokens[*bytes] = token;
  }
  if (found.end_of_text < 0) fail("{}: the token {} is missing", file.string(), kEndOfText);
  return found;
} catch (const nlohmann::json::exception& error) {
  fail("{}: not a JSON object of tokens and their numbers: {}", file.string(), error.what());
}

std::vector<Tokenizer::Merge> read_merges(const std::filesystem::path& file, const Vocabulary& vocabulary) {
  std::ifstream stream(file);
  if (!stream) fail("{}: cannot open", file.string());
  std::vector<Tokenizer::Merge> merges;
  std::size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    const auto left = spelled_bytes(line.substr(0, space));
    const auto right = space == std::string::npos ? std::nullopt : spelled_bytes(line.substr(space + 1));
    if (!left || !right) fail("{}: line {}: not two tokens", file.string(), number);
    const Tokenizer::Merge merge{vocabulary.of(*left), vocabulary.of(*right), vocabulary.of(*left + *right)};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0)
      fail("{}: line {}: a token that the vocabulary lacks", file.string(), number);
    merges.push_back(merge);
  }
  return merges;
}

}  // namespace

Tokenizer::Tokenizer(std::string name, const std::array<std::int32_t, 256>& bytes, std::vector<Merge> merges,
                     std::int32_t end_of_text)
    : name_(std::move(name)), bytes_(bytes), merges_(std::move(merges)), end_of_text_(end_of_text) {
  std::int32_t last = std::max(end_of_text, std::ranges::max(bytes));
  for (const Merge& merge : merges_) last = std::max(last, merge.merged);
  if (last < 0 || static_cast<std::size_t>(last) > std::min(merges_.size() + bytes.size(), kMostTokens))
    fail("tokenizer '{}': token {} of {} merges", name_, last, merges_.size());
  texts_.resize(static_cast<std::size_t>(last) + 1);
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) define(bytes[byte], {static_cast<char>(byte)});
  std::size_t all_bytes = 0;
  for (std::size_t rank = 0; rank < merges_.size(); ++rank) {
    const auto [left, right, merged] = merges_[rank];
    const std::string_view first = bytes_of(left), second = bytes_of(right);
    if (first.empty() || second.empty())
      fail("tokenizer '{}': merge {} is of a token that is not defined before", name_, rank);
    all_bytes += first.size() + second.size();
    if (all_bytes > kMostTextBytes) fail("tokenizer '{}': the tokens' texts are too long", name_);
    define(merged, std::string(first) + std::string(second));
    ranks_.emplace(pair_key(left, right), rank);
  }
  const auto undefined = std::ranges::find(texts_, std::string());
  if (end_of_text < 0 || undefined != texts_.begin() + end_of_text ||
      std::find(undefined + 1, texts_.end(), std::string()) != texts_.end())
    fail("tokenizer '{}': {} must be the end of a text, and every other token bytes or their merge", name_,
         end_of_text);
}

void Tokenizer::define(std::int32_t token, std::string text) {
  if (token < 0) fail("tokenizer '{}': token {}", name_, token);
  std::string& known = texts_[static_cast<std::size_t>(token)];
  if (!known.empty() && known != text) fail("tokenizer '{}': token {} has two meanings", name_, token);
  known = std::move(text);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  TextEncoder encoder(*this);
  encoder.add(text, tokens);
  encoder.finish(tokens);
  tokens.pop_back();
  return tokens;
}

void Tokenizer::encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const {
  const std::size_t before = tokens.size();
  for (const char byte : word) tokens.push_back(bytes_[static_cast<unsigned char>(byte)]);
  if (merges_.empty() || word.size() < 2) return;
  const std::size_t count = WordMerger(merges_, ranks_, std::span(tokens).subspan(before)).merge();
  tokens.resize(before + count);
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += bytes_of(token);
  return text;
}

std::string_view Tokenizer::bytes_of(std::int32_t token) const {
  if (token < 0 || static_cast<std::size_t>(token) >= texts_.size()) return {};
  return texts_[static_cast<std::size_t>(token)];
}

std::string Tokenizer::serialized() const {
  std::vector<std::int32_t> merges;
  for (const Merge& merge : merges_) merges.insert(merges.end(), {merge.left, merge.right, merge.merged});
  return nlohmann::json{{"name", name_}, {"bytes", bytes_}, {"merges", merges}, {"end_of_text", end_of_text_}}.dump();
}

Tokenizer Tokenizer::parse(const std::string& serialized) try {
  const nlohmann::json json = parse_json(serialized);
  const std::vector<std::int32_t> numbers = token_numbers(json.at("merges"));
  const std::vector<std::int32_t> bytes = token_numbers(json.at("bytes"));
  std::array<std::int32_t, 256> of_bytes{};
  if (bytes.size() != of_bytes.size())
    fail("not a tokenizer: it has tokens for {} of {} bytes", bytes.size(), of_bytes.size());
  std::ranges::copy(bytes, of_bytes.begin());
  std::vector<Merge> merges;
  if (numbers.size() % 3 != 0) fail("a tokenizer's merges must be triples");
  for (std::size_t i = 0; i < numbers.size(); i += 3) merges.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  return {json.at("name").get<std::string>(), of_bytes, std::move(merges),
          token_number(json.at("end_of_text"), "not a tokenizer: the end of a text")};
} catch (const nlohmann::json::exception& error) {
  fail("not a tokenizer: {}", error.what());
}

void TextEncoder::add(std::string_view text, std::vector<std::int32_t>& tokens) {
  splitter_.add(text, [&](std::string_view word) { encode(word, tokens); });
}

void TextEncoder::finish(std::vector<std::int32_t>& tokens) {
  splitter_.finish([&](std::string_view word) { encode(word, tokens); });
  tokens.push_back(tokenizer_.end_of_text());
}

void TextEncoder::encode(std::string_view word, std::vector<std::int32_t>& tokens) {
  if (word.size() > kMostKnownWordBytes) return tokenizer_.encode_word(word, tokens);
  auto known = known_.find(word);
  if (known == known_.end()) {
    if (known_.size() >= kMostKnownWords) known_.clear();
    std::vector<std::int32_t> of_word;
    tokenizer_.encode_word(word, of_word);
    known = known_.emplace(word, std::move(of_word)).first;
  }
  tokens.insert(tokens.end(), known->second.begin(), known->second.end());
}

Tokenizer bytes_tokenizer() {
  std::array<std::int32_t, 256> bytes;
  std::iota(bytes.begin(), bytes.end(), 0);
  return {"bytes", bytes, {}, 256};
}

Tokenizer gpt2_tokenizer(const std::filesystem::path& folder) {
  const std::filesystem::path tokens = either(folder, "encoder.json", "vocab.json");
  const Vocabulary vocabulary = read_vocabulary(tokens);
  std::array<std::int32_t, 256> bytes;
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
    bytes[byte] = vocabulary.of({static_cast<char>(byte)});
    if (bytes[byte] < 0) fail("{}: no token for byte {}", tokens.string(), byte);
  }
  return {"gpt2", bytes, read_merges(either(folder, "vocab.bpe", "merges.txt"), vocabulary), vocabulary.end_of_text};
}

}  // namespace annulus
