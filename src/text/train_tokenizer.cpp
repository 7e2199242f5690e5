#include "src/text/train_tokenizer.h"

#include <array>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

namespace annulus {
namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;

struct Word {
  std::vector<std::int32_t> tokens;
  std::int64_t count;
};

struct HashOfPair {
  std::size_t operator()(const Pair& pair) const {
    return std::hash<std::uint64_t>()(pair_key(pair.first, pair.second));
  }
};

// All pairs of adjacent tokens, while pairs are merged.
class Pairs {
 public:
  explicit Pairs(std::vector<Word> words) : words_(std::move(words)) {
    for (std::size_t word = 0; word < words_.size(); ++word) change_counts(word, 1, [](const Pair&) { return true; });
    queue_changes();
  }

  // The most frequent pair; none if no pair occurs twice.
  std::optional<Pair> next() {
    while (!queue_.empty()) {
      const auto [count, left, right] = queue_.top();
      queue_.pop();
      if (count < 2) return {};
      if (found_.at({-left, -right}).count == count) return Pair{-left, -right};  // else it is outdated
    }
    return {};
  }

  void merge(const Pair& pair, std::int32_t merged) {
    for (const std::size_t word : std::exchange(found_.at(pair).words, {})) {
      change_counts(word, -1, [](const Pair&) { return false; });
      replace(words_[word].tokens, pair, merged);
      change_counts(word, 1, [&](const Pair& other) { return other.first == merged || other.second == merged; });
    }
    queue_changes();
  }

 private:
  struct Found {
    std::int64_t count = 0;
    std::vector<std::size_t> words;  // that have it, or had it
  };

  // Adds a word's pairs, or removes them. `is_new`: whether a pair was not in the word before.
  template <class IsNew>
  void change_counts(std::size_t word, std::int64_t sign, const IsNew& is_new) {
    const auto& [tokens, count] = words_[word];
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const Pair pair{tokens[i], tokens[i + 1]};
      Found& found = found_[pair];
      before_.try_emplace(pair, found.count);
      found.count += sign * count;
      if (is_new(pair) && (found.words.empty() || found.words.back() != word)) found.words.push_back(word);
    }
  }

  static void replace(std::vector<std::int32_t>& tokens, const Pair& pair, std::int32_t merged) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i, ++kept) {
      const bool matches = i + 1 < tokens.size() && Pair{tokens[i], tokens[i + 1]} == pair;
      tokens[kept] = matches ? merged : tokens[i];
      i += matches;
    }
    tokens.resize(kept);
  }

  void queue_changes() {
    for (const auto& [pair, before] : before_) {
      const std::int64_t count = found_.at(pair).count;
      if (count != before) queue_.emplace(count, -pair.first, -pair.second);
    }
    before_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Found, HashOfPair> found_;
  std::unordered_map<Pair, std::int64_t, HashOfPair> before_;  // the old counts, for pairs with changed counts
  // Counts, and the negative tokens, so that among equal counts the pair with the lower tokens comes first.
  std::priority_queue<std::tuple<std::int64_t, std::int32_t, std::int32_t>> queue_;
};

}  // namespace

void TokenizerTrainer::add(std::string_view text) {
  splitter_.add(text, [this](std::string_view word) { count(word); });
}

void TokenizerTrainer::finish() {
  splitter_.finish([this](std::string_view word) { count(word); });
}

void TokenizerTrainer::count(std::string_view word) {
  auto known = words_.find(word);
  if (known == words_.end()) known = words_.emplace(word, 0).first;
  ++known->second;
}

Tokenizer TokenizerTrainer::train(std::size_t vocabulary) const {
  std::vector<Word> words;
  for (const auto& [text, count] : words_) {
    Word word{{}, count};
    for (const char byte : text) word.tokens.push_back(static_cast<unsigned char>(byte));
    words.push_back(std::move(word));
  }
  std::array<std::int32_t, 256> bytes;
  std::iota(bytes.begin(), bytes.end(), 0);
  auto next = static_cast<std::int32_t>(bytes.size());
  std::vector<Tokenizer::Merge> merges;
  Pairs pairs(std::move(words));
  while (kFewestTokens + merges.size() < vocabulary) {
    const auto pair = pairs.next();
    if (!pair) break;
    pairs.merge(*pair, next);
    merges.push_back({pair->first, pair->second, next++});
  }
  return {"bpe", bytes, std::move(merges), next};
}

}  // namespace annulus
