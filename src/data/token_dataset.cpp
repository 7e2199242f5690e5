#include "src/data/token_dataset.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "kernels/base/error.h"
#include "src/data/stored_array.h"
#include "src/data/vocabulary.h"
#include "src/io/hdf5.h"

namespace annulus {
namespace {

constexpr std::int32_t kNoToken = -1;

template <class Stored>
void widen(std::span<const std::uint8_t> stored, std::int32_t* tokens) {
  for (std::size_t i = 0; i < stored.size() / sizeof(Stored); ++i) {
    Stored token;
    std::memcpy(&token, stored.data() + i * sizeof token, sizeof token);
    tokens[i] = static_cast<std::int32_t>(token);
  }
}

void widen(std::span<const std::uint8_t> stored, std::size_t bytes_each, std::int32_t* tokens) {
  if (bytes_each == 1) return widen<std::uint8_t>(stored, tokens);
  if (bytes_each == 2) return widen<std::uint16_t>(stored, tokens);
  widen<std::uint32_t>(stored, tokens);
}

// Reading does not use document offsets, but a file with wrong offsets is damaged or has another format.
void check_documents(const hdf5::Dataset& documents, std::size_t tokens) {
  const Shape shape = documents.shape();
  if (!documents.holds_integers() || shape.size() != 1 || shape[0] < 2)
    fail("{}: must hold the first token of each document, and the number of tokens", documents.place());
  std::array<std::int64_t, 1> first, last;
  documents.require_stored();
  documents.read_rows(0, 1, std::span<std::int64_t>(first));
  documents.read_rows(shape[0] - 1, 1, std::span<std::int64_t>(last));
  if (first[0] != 0 || last[0] < 0 || static_cast<std::size_t>(last[0]) != tokens)
    fail("{}: from {} to {}, but there are {} tokens", documents.place(), first[0], last[0], tokens);
}

}  // namespace

// Reads a split in a single file.
class TokenDataset::Shard {
 public:
  Shard(const std::filesystem::path& file, const hdf5::Group& root, const std::string& split, DatasetInfo& info)
      : file_(std::make_shared<const ReadableFile>(file)) {
    const hdf5::Group group = root.group(split);
    hdf5::Dataset tokens = group.dataset("tokens");
    const auto form = tokens.integer_form().value_or(hdf5::Dataset::IntegerForm{0, false});
    const bool is_fitting = form.bytes > 0 && form.bytes <= sizeof(std::uint32_t) && !form.has_sign;
    if (tokens.shape().size() != 1 || !is_fitting)
      fail("{}: must be one row of uint8, uint16 or uint32", tokens.place());
    if (tokens.shape()[0] < 2) fail("{}: {} tokens; at least 2 are needed", tokens.place(), tokens.shape()[0]);
    check_documents(group.dataset("documents"), tokens.shape()[0]);
    info.labels = LabelKind::tokens;
    read_vocabulary(root, info);
    vocabulary_ = info.vocabulary;
    info.tokens = tokens.shape()[0];
    info.text_bytes = group.has_attribute("bytes") ? group.integer("bytes") : 0;
    bytes_each_ = form.bytes;
    tokens_.emplace(std::move(tokens), file_);
    tokens_->map_rows();
  }

  const std::filesystem::path& file() const { return file_->path; }
  std::size_t tokens() const { return tokens_->count(); }

  // Reads `tokens.size()` tokens, filled up with kNoToken at the file's end.
  void read(std::size_t begin, std::span<std::int32_t> tokens) const {
    const std::size_t count = std::min(tokens.size(), tokens_->count() - begin);
    if (!copy(begin, tokens.first(count))) {
      std::vector<std::int64_t> stored(count);
      tokens_->read_integers(begin, stored);
      std::ranges::transform(stored, tokens.begin(), [](std::int64_t token) {
        return static_cast<std::int32_t>(std::min<std::int64_t>(token, kMostTokens));
      });
    }
    std::ranges::fill(tokens.subspan(count), kNoToken);
    const auto is_bad = [this](std::int32_t token) { return static_cast<std::uint32_t>(token) >= vocabulary_; };
    const auto bad = std::ranges::find_if(tokens.first(count), is_bad);
    if (bad != tokens.begin() + static_cast<std::ptrdiff_t>(count))
      fail("token {} at {}, but the vocabulary has {}", static_cast<std::uint32_t>(*bad),
           begin + static_cast<std::size_t>(bad - tokens.begin()), vocabulary_);
  }

  void will_need(std::size_t begin, std::size_t end) const {
    tokens_->will_need(begin, std::min(end, tokens_->count()) - begin);
  }

 private:
  // Returns false if the file is not mapped, or not certain to hold the tokens.
  bool copy(std::size_t begin, std::span<std::int32_t> tokens) const {
    const std::span<const std::uint8_t> all = tokens_->mapped_rows();
    if (all.empty()) return false;
    const auto stored = all.subspan(begin * bytes_each_, tokens.size() * bytes_each_);
    tokens_->check(begin, tokens.size());
    bool sure = true;
    const bool copied = read_mapped([&] {
      widen(stored, bytes_each_, tokens.data());
      sure = tokens_->surely_whole();
    });
    return copied && (sure || tokens_->whole());
  }

  std::shared_ptr<const ReadableFile> file_;
  std::uint64_t vocabulary_ = 0;
  std::size_t bytes_each_ = 0;
  std::optional<StoredArray> tokens_;
};

TokenDataset::TokenDataset(const std::vector<std::filesystem::path>& files, const std::string& split,
                           std::size_t length, Prediction prediction) try
    : split_(split) {
  info_.length = length;
  info_.prediction = prediction;
  for (const std::filesystem::path& file : files) add(file);
  if (shards_.empty())
    fail("{}{}: /{}: missing", files.front().string(), files.size() > 1 ? " and the other data files" : "", split);
} catch (const Error& error) {
  fail("{}; create data files with 'annulus import --from text', see src/data/FORMAT.md", error.what());
}

TokenDataset::~TokenDataset() = default;

void TokenDataset::add(const std::filesystem::path& file) {
  const hdf5::Group root = hdf5::File(file).root();
  if (!root.has(split_)) return;
  DatasetInfo found;
  shards_.emplace_back(file, root, split_, found);
  found.length = info_.length;
  found.prediction = info_.prediction;
  found.size = info_.size + windows(found.tokens);
  if (shards_.size() > 1) {
    const auto differ = [&](const char* what) {
      fail("{} and {} have different {}: they are not files of one data set", shards_.front().file().string(),
           file.string(), what);
    };
    if (info_.vocabulary != found.vocabulary) differ("vocabularies");
    if (info_.tokenizer != found.tokenizer) differ("tokenizers");
    if (info_.mask_token != found.mask_token) differ("mask tokens");
    found.tokens += info_.tokens;
    const bool known = info_.text_bytes > 0 && found.text_bytes > 0;
    found.text_bytes = known ? info_.text_bytes + found.text_bytes : 0;
  }
  info_ = std::move(found);
  ends_.push_back(info_.size);
}

TokenDataset::Place TokenDataset::find(std::size_t sample) const {
  const auto number = static_cast<std::size_t>(std::ranges::upper_bound(ends_, sample) - ends_.begin());
  const Shard& shard = shards_[number];
  const std::size_t begin = (number == 0 ? sample : sample - ends_[number - 1]) * info_.length;
  if (info_.prediction != Prediction::masked) return {&shard, begin};
  const std::size_t whole = std::min(begin, std::max(shard.tokens(), info_.length) - info_.length);
  return {&shard, whole, begin - whole};
}

void TokenDataset::expect_whole_windows() const {
  for (const Shard& shard : shards_)
    if (shard.tokens() < info_.length)
      fail("{}: /{}: {} tokens are fewer than a window of {}: give --length {}", shard.file().string(), split_,
           shard.tokens(), info_.length, shard.tokens());
}

std::string TokenDataset::place(std::size_t sample) const {
  const Place found = find(sample);
  return fmt::format("{}: {} tokens from {} on", found.shard->file().string(), split_, found.begin);
}

void TokenDataset::read_image(std::size_t sample, std::span<std::uint8_t> pixels) const {
  read(sample, find(sample), pixels);
}

// Keeps a shifted window whole, if the text is long enough.
void TokenDataset::read_shifted(std::size_t sample, std::size_t shift, std::span<std::uint8_t> pixels) const {
  Place found = find(sample);
  const std::size_t window = info_.length + next_tokens();
  found.begin += found.repeated;
  found.repeated = 0;
  found.begin = std::min(found.begin + shift, std::max(found.shard->tokens(), window) - window);
  read(sample, found, pixels);
}

void TokenDataset::read(std::size_t sample, const Place& found, std::span<std::uint8_t> pixels) const try {
  const std::span tokens(reinterpret_cast<std::int32_t*>(pixels.data()), info_.length + 1);
  found.shard->read(found.begin, tokens);
  if (info_.prediction == Prediction::masked) tokens.back() = static_cast<std::int32_t>(found.repeated);
} catch (const Error& error) {
  fail("{}: {}", place(sample), error.what());
}

void TokenDataset::read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const {
  bytes.resize(info_.image_bytes());
  read_image(sample, bytes);
}

void TokenDataset::will_need(Range samples) const {
  while (samples.begin < samples.end) {
    const Place found = find(samples.begin);
    const std::size_t window = (found.begin + found.repeated) / info_.length;
    const std::size_t count = std::min(samples.size(), windows(found.shard->tokens()) - window);
    found.shard->will_need(found.begin, found.begin + (count + 1) * info_.length);  // shifted windows as well
    samples.begin += count;
  }
}

}  // namespace annulus
