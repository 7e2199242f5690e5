#include "src/import/documents.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/error.h"
#include "src/io/file_io.h"
#include "src/io/printable.h"
#include "src/text/train_tokenizer.h"

namespace annulus {
namespace {

constexpr std::size_t kMostVocabulary = std::size_t{1} << 20;

std::string_view text_of(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Tokenizer trained_tokenizer(std::size_t vocabulary, const SourceFolders& folders, const SourcePlan& plan) {
  TokenizerTrainer trainer;
  std::size_t left = kTrainingBytes;
  const SourceSplit& split = plan.splits.front();
  for (std::size_t piece = 0; piece < split.pieces.size() && left > 0; ++piece)
    kTextSource.read(folders, plan, split, piece, [&](const SourceSample& sample) {
      const std::string_view text = text_of(sample.bytes).substr(0, left);
      trainer.add(text);
      if (sample.ends) trainer.finish();
      left -= text.size();
      return left > 0;
    });
  trainer.finish();
  return trainer.train(vocabulary);
}

template <class Stored>
void store(std::span<const std::int32_t> tokens, std::uint8_t* to) {
  for (const std::int32_t token : tokens) {
    const auto value = static_cast<Stored>(token);
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  }
}

std::int32_t load(const std::uint8_t* from, std::size_t bytes) {
  std::int32_t token = 0;
  std::memcpy(&token, from, bytes);  // data files are little-endian
  return token;
}

}  // namespace

Tokenizer make_tokenizer(const std::string& choice, const SourceFolders& folders, const SourcePlan& plan) {
  constexpr std::string_view kGpt2 = "gpt2:", kTrain = "train:";
  if (choice.empty() || choice == "bytes") return bytes_tokenizer();
  if (choice.starts_with(kGpt2)) return gpt2_tokenizer(choice.substr(kGpt2.size()));
  if (choice.starts_with(kTrain)) {
    std::size_t vocabulary = 0;
    const char* const end = choice.data() + choice.size();
    const auto [rest, error] = std::from_chars(choice.data() + kTrain.size(), end, vocabulary);
    if (error == std::errc() && rest == end && vocabulary >= TokenizerTrainer::kFewestTokens &&
        vocabulary <= kMostVocabulary)
      return trained_tokenizer(vocabulary, folders, plan);
    fail("--tokenizer {}: must have a vocabulary of {} to {} tokens, such as train:8192", choice,
         TokenizerTrainer::kFewestTokens, kMostVocabulary);
  }
  fail("--tokenizer {}: must be bytes, gpt2:FOLDER, or train:N, such as train:8192", choice);
}

std::size_t token_bytes(std::size_t vocabulary) {
  return vocabulary <= 1 << 8 ? 1 : vocabulary <= 1 << 16 ? 2 : 4;
}

DocumentConverter::DocumentConverter(const ImportJob& job)
    : job_(job),
      tokenizer_(Tokenizer::parse(job.tokenizer)),
      token_bytes_(token_bytes(tokenizer_.vocabulary())),
      encoder_(tokenizer_) {}

void DocumentConverter::convert(const std::filesystem::path& parts, const PieceNumber& number, const Report& report) {
  const SourceSplit& split = job_.plan.splits[number.split];
  PartWriter part(part_of(parts, split, number.piece));
  bool wanted = true;
  std::uint64_t text_bytes = 0, invalid = 0;  // in the current document
  kTextSource.read(job_.folders(parts), job_.plan, split, number.piece, [&](const SourceSample& sample) {
    const std::string name = printable(sample.name), problem = printable(sample.problem);
    if (!problem.empty() && !job_.skips_bad_samples) fail("{}: {}", name, problem);
    if (!problem.empty()) {
      part.skip(name, problem);
    } else {
      const std::uint64_t invalid_before = encoder_.invalid_bytes();
      encoder_.add(text_of(sample.bytes), tokens_);
      text_bytes += sample.bytes.size();
      if (sample.ends) encoder_.finish(tokens_);
      write(part);
      invalid += encoder_.invalid_bytes() - invalid_before;
      if (sample.ends) part.end_document(std::exchange(text_bytes, 0), std::exchange(invalid, 0));
    }
    wanted = report(sample.ends ? 1 : 0, sample.bytes.size());
    return wanted;
  });
  if (wanted) part.finish({});
}

void DocumentConverter::write(PartWriter& part) {
  stored_.resize(tokens_.size() * token_bytes_);
  if (token_bytes_ == 1) store<std::uint8_t>(tokens_, stored_.data());
  if (token_bytes_ == 2) store<std::uint16_t>(tokens_, stored_.data());
  if (token_bytes_ == 4) store<std::uint32_t>(tokens_, stored_.data());
  part.add_tokens(stored_);
  tokens_.clear();
}

void hold_out_end(const std::filesystem::path& part, const Tokenizer& tokenizer, double share,
                  Collection::Split& split) {
  constexpr std::size_t kFewestTokens = 2;  // a token to predict, and a token before it
  const std::size_t each = token_bytes(tokenizer.vocabulary());
  const std::uint64_t tokens = split.sizes.front() / each;
  const auto held = static_cast<std::uint64_t>(std::llround(share * static_cast<double>(tokens)));
  if (held < kFewestTokens || tokens - held < kFewestTokens)
    fail("--hold-out {}: the only document has {} tokens, too few for it", share, tokens);
  const std::filesystem::path file = part_data_file(part);
  const FileDescriptor data = open_to_read(file);
  std::uint64_t text_bytes = 0;
  std::vector<std::uint8_t> stored;
  for (std::uint64_t token = tokens - held; token < tokens; token += stored.size() / each) {
    stored.resize(std::min<std::uint64_t>(tokens - token, 1 << 18) * each);
    read_at(data, file, token * each, stored);
    for (std::size_t i = 0; i < stored.size(); i += each)
      text_bytes += tokenizer.bytes_of(load(stored.data() + i, each)).size();
  }
  split.sizes = {(tokens - held) * each, held * each};
  split.text_bytes = {split.text_bytes.front() - text_bytes, text_bytes};
  split.labels = {0, 0};
  split.held_out = {0, 1};
  split.is_cut = true;
  for (std::uint64_t& first : split.first_samples) first *= 2;  // 0 or 1 document: now 0 or 2
}

}  // namespace annulus
