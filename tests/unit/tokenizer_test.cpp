#include "src/text/tokenizer.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/base/random.h"
#include "src/text/train_tokenizer.h"
#include "tests/unit/error_text.h"
#include "tests/unit/temporary_folder.h"

namespace annulus {
namespace {

using Catch::Contains;
using Tokens = std::vector<std::int32_t>;
using Words = std::vector<std::string>;
using Merges = std::vector<std::pair<std::string, std::string>>;

Words words_of(const std::vector<std::string>& pieces) {
  WordSplitter splitter;
  Words words;
  const auto take = [&](std::string_view word) { words.emplace_back(word); };
  for (const std::string& piece : pieces) splitter.add(piece, take);
  splitter.finish(take);
  return words;
}

// Texts whose characters meet all the cases of the rule, or are not characters.
std::string random_text(std::uint64_t seed, std::size_t size) {
  static const std::vector<std::string> kParts{"a",
                                               "b",
                                               "the",
                                               " ",
                                               "  ",
                                               "\n",
                                               "\t",
                                               "\r\n",
                                               "'",
                                               "'s",
                                               "'re",
                                               "'S",
                                               "1",
                                               "42",
                                               ",",
                                               "...",
                                               "\xc3\xa4",
                                               "\xe2\x82\xac",
                                               "\xc2\xa0",
                                               "\xe3\x80\x80",
                                               "\xf0\x9f\x99\x82",
                                               "\xd9\xa3",
                                               "\xff",
                                               "\xc3",
                                               "\xe2\x82",
                                               "\xed\xa0\x80",
                                               "\xc0\x80",
                                               "\xf4\x90\x80\x80",
                                               std::string(1, '\0'),
                                               "\xe1\xa0\x8e",
                                               "\xc2\x85",
                                               "\x1c"};
  std::string text;
  for (std::uint64_t i = 0; text.size() < size; ++i) text += kParts[mix(seed, i) % kParts.size()];
  return text;
}

std::vector<std::string> random_pieces(const std::string& text, std::uint64_t seed, std::size_t most) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < text.size(); at += pieces.back().size())
    pieces.push_back(text.substr(at, 1 + mix(seed, at) % most));
  return pieces;
}

// The way in which GPT-2's files spell bytes.
std::string spelled(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    unsigned point = byte;
    if (byte <= 0x20) point = 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0) point = 0x121 + byte - 0x7f;
    if (byte == 0xad) point = 0x143;
    if (point < 0x80)
      text += static_cast<char>(point);
    else
      text += {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
  }
  return text;
}

// Files in GPT-2's format, whose bytes are tokens in reverse order.
struct Files {
  explicit Files(const Merges& merges) {
    nlohmann::json tokens;
    std::int32_t next = 0;
    for (int byte = 255; byte >= 0; --byte) tokens[spelled({static_cast<char>(byte)})] = next++;
    std::string lines = "#version: 0.2\n";
    for (const auto& [left, right] : merges) {
      if (!tokens.contains(spelled(left + right))) tokens[spelled(left + right)] = next++;
      lines += spelled(left) + " " + spelled(right) + "\n";
    }
    tokens["<|endoftext|>"] = next;
    write(tokens, lines);
  }

  void write(const nlohmann::json& tokens, const std::string& lines) const {
    test::write_text(folder / "encoder.json", tokens.dump());
    test::write_text(folder / "vocab.bpe", lines);
  }

  std::string error() const {
    return test::error_of([this] { gpt2_tokenizer(folder.path()); });
  }

  test::TemporaryFolder folder;
};

// GPT-2's own algorithm: merges all places of the pair that comes first, again and again.
Words merged(std::string word, const Merges& merges) {
  Words parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    std::size_t best = merges.size();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = std::ranges::find(merges, std::pair(parts[i], parts[i + 1]));
      best = std::min(best, static_cast<std::size_t>(found - merges.begin()));
    }
    if (best == merges.size()) return parts;
    Words next;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool matches = i + 1 < parts.size() && std::pair(parts[i], parts[i + 1]) == merges[best];
      next.push_back(matches ? parts[i] + parts[i + 1] : parts[i]);
      i += matches;
    }
    parts = next;
  }
}

// One merge makes "ab"; two make "abc", of "a" and "bc" and of "ab" and "c".
const Merges kMerges{{"a", "b"},  {"b", "c"}, {"a", "bc"},  {"ab", "ab"}, {"abc", "abc"},
                     {"ab", "c"}, {"a", "a"}, {"aa", "aa"}, {"a", "ab"}};

}  // namespace

TEST_CASE("words are cut by GPT-2's rule", "[tokenizer]") {
  CHECK(words_of({"Hello world's 123abc,  I'll go\n\n  on\t x "}) ==
        Words{"Hello", " world", "'s", " 123", "abc", ",", " ", " I", "'ll", " go", "\n\n ", " on", "\t", " x", " "});
  CHECK(words_of({"don'T we've\r\n"}) == Words{"don", "'", "T", " we", "'ve", "\r\n"});
  CHECK(words_of({"\xc3\xa4t \xd9\xa3\xc2\xa0\xc2\xa0x"}) ==
        Words{"\xc3\xa4t", " \xd9\xa3", "\xc2\xa0", "\xc2\xa0", "x"});
  // U+180e and U+001c are no white space in Unicode, U+0085 is.
  CHECK(words_of({"a\xe1\xa0\x8e"
                  "b\x1c"
                  "c\xc2\x85"}) == Words{"a", "\xe1\xa0\x8e", "b", "\x1c", "c", "\xc2\x85"});
  CHECK(words_of({""}).empty());
}

TEST_CASE("each byte that is not UTF-8 is a word", "[tokenizer]") {
  CHECK(words_of({"a\xff\xfe z\xe2\x82"}) == Words{"a", "\xff", "\xfe", " z", "\xe2", "\x82"});
  WordSplitter splitter;
  const auto ignore = [](std::string_view) {};
  splitter.add("a\xff\xfe z\xe2", ignore);
  splitter.add("\x82\xac\xe2\x82", ignore);
  CHECK(splitter.invalid_bytes() == 2);
  splitter.finish(ignore);
  CHECK(splitter.invalid_bytes() == 4);
}

TEST_CASE("words do not depend on the pieces in which a text arrives", "[tokenizer]") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::string text = random_text(seed, 60);
    const Words whole = words_of({text});
    CHECK(std::accumulate(whole.begin(), whole.end(), std::string()) == text);
    for (const std::size_t most : {1u, 3u, 20u}) CHECK(words_of(random_pieces(text, seed, most)) == whole);
  }
}

TEST_CASE("long words are cut", "[tokenizer]") {
  constexpr std::size_t kMost = WordSplitter::kMostWordBytes;
  CHECK(words_of({std::string(2 * kMost + 1, 'x')}) == Words{std::string(kMost, 'x'), std::string(kMost, 'x'), "x"});
  for (const std::string part : {"x", " ", "\xc3\xa4", "\xe3\x80\x80", "-"}) {
    std::string text = "a";
    while (text.size() < 5 * kMost / 2) text += part;
    text += "a";
    const Words whole = words_of({text});
    CHECK(std::accumulate(whole.begin(), whole.end(), std::string()) == text);
    CHECK(std::ranges::max(whole, {}, &std::string::size).size() <= kMost);
    for (const std::size_t most : {1000u, 60000u}) CHECK(words_of(random_pieces(text, 1, most)) == whole);
  }
}

TEST_CASE("bytes are tokens", "[tokenizer]") {
  const Tokenizer tokenizer = bytes_tokenizer();
  CHECK(tokenizer.name() == "bytes");
  CHECK(tokenizer.vocabulary() == 257);
  CHECK(tokenizer.end_of_text() == 256);
  CHECK(tokenizer.encode(std::string("a\xff\0", 3)) == Tokens{97, 255, 0});
  CHECK(tokenizer.decode(Tokens{97, 256, 255, 300, -1}) == "a\xff");
  TextEncoder encoder(tokenizer);
  Tokens tokens;
  encoder.add("x", tokens);
  encoder.finish(tokens);
  encoder.add("y", tokens);
  encoder.finish(tokens);
  CHECK(tokens == Tokens{'x', 256, 'y', 256});
}

TEST_CASE("files of GPT-2's format are read", "[tokenizer]") {
  const Files files({{"\xc3", "\xa4"}, {" ", "t"}, {" t", "h"}});
  const Tokenizer tokenizer = gpt2_tokenizer(files.folder.path());
  CHECK(tokenizer.name() == "gpt2");
  CHECK(tokenizer.vocabulary() == 260);
  CHECK(tokenizer.end_of_text() == 259);
  CHECK(tokenizer.encode("\xc3\xa4 then\n") == Tokens{256, 258, 255 - 'e', 255 - 'n', 255 - '\n'});
  CHECK(tokenizer.bytes_of(258) == " th");
  CHECK(tokenizer.bytes_of(255 - 0xad) == "\xad");
  CHECK(tokenizer.encode("<|endoftext|>").size() == 13);  // a text cannot end itself

  std::filesystem::rename(files.folder / "encoder.json", files.folder / "vocab.json");
  std::filesystem::rename(files.folder / "vocab.bpe", files.folder / "merges.txt");
  CHECK(gpt2_tokenizer(files.folder.path()).serialized() == tokenizer.serialized());
}

TEST_CASE("files that are not of GPT-2's format are refused", "[tokenizer]") {
  const Files files(Merges{{"a", "b"}});
  const std::string merges = test::read_text(files.folder / "vocab.bpe");
  nlohmann::json tokens = nlohmann::json::parse(test::read_text(files.folder / "encoder.json"));
  SECTION("missing") {
    std::filesystem::remove(files.folder / "vocab.bpe");
    CHECK_THAT(files.error(), Contains("vocab.bpe: missing (or merges.txt)"));
  }
  SECTION("not JSON") {
    test::write_text(files.folder / "encoder.json", "a b\n");
    CHECK_THAT(files.error(), Contains("encoder.json: not a JSON object"));
  }
  SECTION("no end") {
    tokens.erase("<|endoftext|>");
    files.write(tokens, merges);
    CHECK_THAT(files.error(), Contains("<|endoftext|> is missing"));
  }
  SECTION("no byte") {
    tokens.erase("a");
    files.write(tokens, merges);
    CHECK_THAT(files.error(), Contains("no token for byte 97"));
  }
  SECTION("another special token") {
    tokens["<pad>\xe2\x82\xac"] = 300;
    files.write(tokens, merges);
    CHECK_THAT(files.error(), Contains("is neither bytes nor <|endoftext|>"));
  }
  SECTION("a merge of an unknown token") {
    files.write(tokens, merges + "ab c\n");
    CHECK_THAT(files.error(), Contains("vocab.bpe: line 3: a token that the vocabulary lacks"));
  }
  SECTION("a number that another would become in 32 bits, or a part of one") {
    for (const nlohmann::json& number :
         {nlohmann::json(std::int64_t{1} << 40), nlohmann::json(97.5), nlohmann::json("97")}) {
      tokens["a"] = number;
      files.write(tokens, merges);
      CHECK_THAT(files.error(), Contains("token 'a': its number is " + number.dump()));
    }
  }
  SECTION("a gap") {
    tokens["<|endoftext|>"] = 258;
    files.write(tokens, merges);
    CHECK_THAT(files.error(), Contains("258"));
  }
}

TEST_CASE("merges are those of GPT-2's algorithm", "[tokenizer]") {
  const Files files(kMerges);
  const Tokenizer tokenizer = gpt2_tokenizer(files.folder.path());
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::string word;
    for (std::uint64_t i = 0; i < 1 + mix(seed) % 14; ++i) word += "abc"[mix(seed, i) % 3];
    Words parts;
    for (const std::int32_t token : tokenizer.encode(word)) parts.emplace_back(tokenizer.bytes_of(token));
    CHECK(parts == merged(word, kMerges));
  }
  const std::string longest(WordSplitter::kMostWordBytes, 'a');  // no quadratic time
  CHECK(tokenizer.encode(longest).size() == longest.size() / 4);
}

TEST_CASE("any bytes are encoded and decoded", "[tokenizer]") {
  const Files files(kMerges);
  TokenizerTrainer trainer;
  trainer.add(random_text(1, 10000));
  trainer.finish();
  for (const Tokenizer& tokenizer : {bytes_tokenizer(), gpt2_tokenizer(files.folder.path()), trainer.train(400)}) {
    CHECK(tokenizer.encode("").empty());
    const Tokenizer again = Tokenizer::parse(tokenizer.serialized());
    CHECK(again.serialized() == tokenizer.serialized());
    CHECK(again.name() == tokenizer.name());
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      const std::string text = random_text(seed, 300);
      const Tokens tokens = tokenizer.encode(text);
      CHECK(tokenizer.decode(tokens) == text);
      CHECK(again.encode(text) == tokens);
    }
  }
}

TEST_CASE("a serialized tokenizer that is damaged is refused", "[tokenizer]") {
  const Files files(Merges{{"a", "b"}});
  const auto good = nlohmann::json::parse(gpt2_tokenizer(files.folder.path()).serialized());
  const auto error = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad[key] = value;
    return test::error_of([&] { Tokenizer::parse(bad.dump()); });
  };
  CHECK_THAT(test::error_of([] { Tokenizer::parse("{"); }), Contains("not a tokenizer"));
  CHECK_THAT(error("bytes", {1, 2}), Contains("not a tokenizer"));
  CHECK_THAT(error("bytes", std::vector<int>(256, 7)), Contains("token 7 has two meanings"));
  CHECK_THAT(error("merges", {1, 2}), Contains("must be triples"));
  CHECK_THAT(error("merges", {1, 256, 256}), Contains("merge 0 is of a token that is not defined before"));
  CHECK_THAT(error("merges", {1, -2, 256}), Contains("merge 0 is of a token"));
  CHECK_THAT(error("merges", {1, 2, 1 << 30}), Contains("of 1 merges"));
  CHECK_THAT(error("merges", {1, 2, -5}), Contains("token -5"));
  CHECK_THAT(error("end_of_text", std::int64_t{1} << 40), Contains("the end of a text: its number is 1099511627776"));
  CHECK_THAT(error("merges", {1, 2, std::int64_t{1} << 40}), Contains("its number is 1099511627776"));
  CHECK_THAT(error("end_of_text", -1), Contains("must be the end of a text"));
  CHECK_THAT(error("end_of_text", 5), Contains("must be the end of a text"));
  nlohmann::json doubling = nlohmann::json::array();
  for (int i = 0; i < 60; ++i)
    for (const int token : {i == 0 ? 0 : 255 + i, i == 0 ? 0 : 255 + i, 256 + i}) doubling.push_back(token);
  CHECK_THAT(error("merges", doubling), Contains("texts are too long"));
}

TEST_CASE("the most frequent pairs become tokens", "[tokenizer]") {
  TokenizerTrainer trainer;
  trainer.add("low low low low low lower lower newest newest newest newest newest newest wid");
  trainer.add("est widest widest\n");
  trainer.finish();
  const Tokenizer tokenizer = trainer.train(264);
  CHECK(tokenizer.name() == "bpe");
  CHECK(tokenizer.vocabulary() == 264);
  CHECK(tokenizer.end_of_text() == 263);
  Words made;
  for (std::int32_t token = 256; token < 263; ++token) made.emplace_back(tokenizer.bytes_of(token));
  // "es" and "st" occur nine times each, and "es" has the lower tokens; "lo" and "ow" seven times; the last three pairs
  // six times.
  CHECK(made == Words{"es", "est", "lo", "low", " n", " low", "ew"});
  // A text without pairs that occur twice gives fewer tokens.
  TokenizerTrainer little;
  little.add("abab");
  little.finish();
  CHECK(little.train(1000).vocabulary() == 258);
  CHECK(little.train(257).vocabulary() == 257);
}

// Counts all pairs anew for each merge.
TEST_CASE("training finds the merges of the plain algorithm", "[tokenizer]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < 400; ++i) text += "aab b  c"[mix(seed, i) % 8];
    TokenizerTrainer trainer;
    for (const std::string& piece : random_pieces(text, seed, 30)) trainer.add(piece);
    trainer.finish();
    const Tokenizer trained = trainer.train(300);

    std::vector<Tokens> words;
    for (const std::string& word : words_of({text})) words.emplace_back(word.begin(), word.end());
    std::vector<Tokenizer::Merge> merges;
    for (std::int32_t next = 256; next < 299; ++next) {
      std::map<std::pair<std::int32_t, std::int32_t>, int> counts;
      for (const Tokens& word : words)
        for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
      const auto best = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
      if (best == counts.end() || best->second < 2) break;
      const auto [left, right] = best->first;
      merges.push_back({left, right, next});
      for (Tokens& word : words)
        for (std::size_t i = 0; i + 1 < word.size(); ++i)
          if (word[i] == left && word[i + 1] == right) {
            word[i] = next;
            word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          }
    }
    std::array<std::int32_t, 256> bytes;
    std::iota(bytes.begin(), bytes.end(), 0);
    const auto end = static_cast<std::int32_t>(256 + merges.size());
    CHECK(trained.serialized() == Tokenizer("bpe", bytes, std::move(merges), end).serialized());
  }
}

TEST_CASE("GPT-2's own files give its tokens", "[tokenizer]") {
  const char* const folder = std::getenv("ANNULUS_GPT2");
  if (folder == nullptr) {
    WARN("skipped: ANNULUS_GPT2 does not name a folder with GPT-2's encoder.json and vocab.bpe");
    return;
  }
  const Tokenizer tokenizer = gpt2_tokenizer(folder);
  CHECK(tokenizer.vocabulary() == 50257);
  CHECK(tokenizer.end_of_text() == 50256);
  CHECK(tokenizer.encode("Hello world") == Tokens{15496, 995});
  CHECK(tokenizer.encode("Hello, my dog is cute") == Tokens{15496, 11, 616, 3290, 318, 13779});
  CHECK(Tokenizer::parse(tokenizer.serialized()).encode(" don't") == tokenizer.encode(" don't"));
}

}  // namespace annulus
