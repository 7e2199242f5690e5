#include "src/data/dataset.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "src/data/stored_array.h"
#include "src/data/vocabulary.h"
#include "src/io/file_mapping.h"
#include "src/io/hdf5.h"

namespace annulus {

// Reads a split in a single file.
class Dataset::Shard {
 public:
  Shard(const std::filesystem::path& file, const hdf5::Group& root, const std::string& split);

  // See StoredArray.
  void keep_small(std::size_t& budget) {
    labels_->keep(budget);
    if (offsets_) offsets_->keep(budget);
  }

  const std::filesystem::path& file() const { return file_->path; }
  const DatasetInfo& info() const { return info_; }

  std::int32_t label(std::size_t sample) const;
  void read_targets(std::size_t sample, std::span<float> targets) const;
  void begin_to_fetch_label(std::size_t sample) const { labels_->begin_to_fetch(sample); }
  void read_image(std::size_t sample, std::span<std::uint8_t> pixels) const;
  void read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const;

  // Returns decoded images as stored in the file, mapped (file_mapping.h); empty if mapping is impossible.
  std::span<const std::uint8_t> mapped() const { return values_->mapped_rows(); }
  // See StoredArray.
  bool surely_whole() const { return values_->surely_whole(); }
  bool whole() const { return values_->whole(); }
  void check_mapped(std::size_t sample) const { values_->check(sample, 1); }

  void will_need(Range samples) const;

 private:
  void open_decoded(const hdf5::Group& group);
  void open_encoded(const hdf5::Group& group);
  void open_texts(const hdf5::Group& root, const hdf5::Group& group);
  void read_tokens(std::size_t sample, std::span<std::int32_t> tokens) const;
  void open_labels(const hdf5::Group& group);
  Range encoded_range(std::size_t sample) const;

  std::shared_ptr<const ReadableFile> file_;
  DatasetInfo info_;
  std::optional<StoredArray> labels_, values_;  // values: the images, encoded images' bytes, or texts' tokens
  std::optional<StoredArray> offsets_;          // where each encoded image begins
};

namespace {

// Larger than any image that can be decoded; a larger size means that an offset is wrong.
constexpr std::size_t kMostEncodedBytes = std::size_t{1} << 30;

void require_per_channel(const hdf5::Group& root, const char* name, const std::vector<float>& values,
                         std::size_t channels) {
  if (values.size() != channels) {
    fail("{} attribute '{}': {} values for {} channels", root.place(), name, values.size(), channels);
  }
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    fail("{} attribute '{}': not a finite number", root.place(), name);
  }
}

LabelKind label_kind(const hdf5::Dataset& labels) {
  if (labels.holds<float>()) return LabelKind::values;
  if (!labels.holds_integers())
    fail("{}: must hold integers (one class), uint8 (0 or 1 for each class) or float32 (regression)", labels.place());
  return labels.shape().size() == 2 ? LabelKind::several_classes : LabelKind::one_class;
}

// Returns the attribute that names the classes or the values.
const char* names_attribute(LabelKind labels) {
  return labels == LabelKind::values ? "values" : "classes";
}

void read_attributes(const hdf5::Group& root, DatasetInfo& info) {
  const char* const names = names_attribute(info.labels);
  info.classes = root.strings(names);
  if (info.classes.empty())
    fail("{} attribute '{}': empty; it must name every {}", root.place(), names,
         info.labels == LabelKind::values ? "value" : "class");
  if (info.is_text()) return;
  info.mean = root.floats("mean");
  info.stddev = root.floats("deviation");
  if (info.encoded()) info.channels = info.mean.size();  // the images are decoded to this number
  if (info.encoded() && info.channels != 1 && info.channels != 3)
    fail("{} attribute 'mean': {} values; encoded images have 1 channel or 3", root.place(), info.channels);
  require_per_channel(root, "mean", info.mean, info.channels);
  require_per_channel(root, "deviation", info.stddev, info.channels);
  if (std::ranges::min(info.stddev) <= 0) {
    fail("{} attribute 'deviation': {} is not above 0", root.place(), std::ranges::min(info.stddev));
  }
}

void require_integers(const hdf5::Dataset& dataset, std::size_t count, const char* of_what, std::size_t things) {
  if (!dataset.holds_integers()) fail("{}: must hold integers", dataset.place());
  if (dataset.shape() != Shape{count})
    fail("{}: shape {}, but there are {} {}", dataset.place(), to_string(dataset.shape()), things, of_what);
}

// Prefetches an image part; an invalid address does no harm. Inlined, because GCC 12 otherwise takes it for a function
// without effect and drops the call.
[[gnu::always_inline]] inline void begin_to_fetch(std::span<const std::uint8_t> image, std::size_t from,
                                                  std::size_t bytes) {
  const std::size_t end = std::min(from + bytes, image.size());
  for (std::size_t at = from; at < end; at += kCacheLine) __builtin_prefetch(image.data() + at);
}

// Prefetches, during another copy, where an image and the image's next page begin: the TLB entries are missing, and
// processors do not prefetch beyond a page by themselves.
[[gnu::always_inline]] inline void begin_to_fetch(std::span<const std::uint8_t> image) {
  // Less covers too little in a small image, more takes longer than it saves (measured on Zen 3).
  begin_to_fetch(image, 0, 1024);
  begin_to_fetch(image, kPage - reinterpret_cast<std::uintptr_t>(image.data()) % kPage, 512);
}

// Throws Error unless two files can belong to the same data set.
void require_consistent(const std::filesystem::path& a, const DatasetInfo& first, const std::filesystem::path& b,
                        const DatasetInfo& other) {
  const auto differ = [&](const char* what) {
    fail("{} and {} have different {}: they are not files of one data set", a.string(), b.string(), what);
  };
  if (first.labels != other.labels) differ("kinds of labels");
  if (first.classes != other.classes) differ(names_attribute(first.labels));
  if (first.mean != other.mean) differ("means");
  if (first.stddev != other.stddev) differ("standard deviations");
  if (first.encoded() != other.encoded()) differ("kinds of images, decoded and encoded");
  if (first.vocabulary != other.vocabulary) differ("vocabularies");
  if (first.tokenizer != other.tokenizer) differ("tokenizers");
  if (first.length != other.length) differ("lengths of texts");
  if (first.height != other.height || first.width != other.width || first.channels != other.channels)
    differ("sizes of images");
}

}  // namespace

std::vector<std::filesystem::path> data_files(const std::vector<std::string>& names) {
  std::vector<std::filesystem::path> files;
  for (const std::string& name : names) {
    glob_t found{};
    // A name that exists as a file is never a pattern.
    const bool matched = !std::filesystem::exists(name) && ::glob(name.c_str(), 0, nullptr, &found) == 0;
    for (std::size_t i = 0; matched && i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
    ::globfree(&found);
    if (!matched) files.emplace_back(name);  // if it does not exist, opening it reports that
  }
  std::ranges::sort(files);
  if (const auto twice = std::ranges::adjacent_find(files); twice != files.end())
    fail("{}: named twice as a data file", twice->string());
  return files;
}

bool has_split(const std::vector<std::filesystem::path>& files, const std::string& split) {
  return std::ranges::any_of(files, [&](const auto& file) { return hdf5::File(file).root().has(split); });
}

Dataset::Shard::Shard(const std::filesystem::path& file, const hdf5::Group& root, const std::string& split)
    : file_(std::make_shared<const ReadableFile>(file)) {
  const hdf5::Group group = root.group(split);
  group.has("tokens") ? open_texts(root, group) : group.has("bytes") ? open_encoded(group) : open_decoded(group);
  const hdf5::Dataset labels = group.dataset("labels");
  info_.labels = label_kind(labels);
  if (info_.labels == LabelKind::values && !root.has_attribute("values"))
    fail(
        "{}: float32 is for regression, and the attribute 'values', which must name the labels' columns, is missing; "
        "save classes as integers (one-hot labels: labels.argmax(1))",
        labels.place());
  if (info_.labels != LabelKind::values && root.has_attribute("values"))
    fail("{}: integers are classes, but the attribute 'values' is for regression: save the labels as float32",
         labels.place());
  read_attributes(root, info_);
  open_labels(group);
}

void Dataset::Shard::open_decoded(const hdf5::Group& group) {
  hdf5::Dataset images = group.dataset("images");
  const Shape shape = images.shape();
  if (shape.size() != 4 || !images.holds<std::uint8_t>()) {
    fail("{}: must be uint8 images x height x width x channels", images.place());
  }
  if (std::ranges::count(shape, 0u) != 0) fail("{}: no images (shape {})", images.place(), to_string(shape));
  info_.size = shape[0];
  info_.height = shape[1];
  info_.width = shape[2];
  info_.channels = shape[3];
  values_.emplace(std::move(images), file_);
  values_->map_rows();
}

void Dataset::Shard::open_texts(const hdf5::Group& root, const hdf5::Group& group) {
  hdf5::Dataset tokens = group.dataset("tokens");
  const Shape shape = tokens.shape();
  if (shape.size() != 2 || !tokens.holds_integers() || elements(shape) == 0)
    fail("{}: shape {}: with labels, tokens must be integers, texts x length", tokens.place(), to_string(shape));
  info_.size = shape[0];
  info_.length = shape[1];
  info_.tokens = elements(shape);
  info_.prediction = Prediction::label;
  read_vocabulary(root, info_);
  values_.emplace(std::move(tokens), file_);
}

void Dataset::Shard::read_tokens(std::size_t sample, std::span<std::int32_t> tokens) const {
  thread_local std::vector<std::int64_t> stored;
  stored.resize(tokens.size());
  values_->read_integers(sample, stored);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (stored[i] < 0 || static_cast<std::uint64_t>(stored[i]) >= info_.vocabulary)
      fail("token {} at {}, but the vocabulary has {}", stored[i], i, info_.vocabulary);
    tokens[i] = static_cast<std::int32_t>(stored[i]);
  }
}

void Dataset::Shard::read_image(std::size_t sample, std::span<std::uint8_t> pixels) const {
  if (!info_.is_text()) return values_->read_bytes(sample, 1, pixels);
  read_tokens(sample, {reinterpret_cast<std::int32_t*>(pixels.data()), info_.length});
}

void Dataset::Shard::open_encoded(const hdf5::Group& group) {
  hdf5::Dataset bytes = group.dataset("bytes");
  hdf5::Dataset offsets = group.dataset("offsets");
  if (bytes.shape().size() != 1 || !bytes.holds<std::uint8_t>())
    fail("{}: must be uint8, the images' files one after the other", bytes.place());
  const Shape shape = offsets.shape();
  if (shape.size() != 1 || shape[0] < 2) fail("{}: no images (shape {})", offsets.place(), to_string(shape));
  info_.size = shape[0] - 1;
  require_integers(offsets, info_.size + 1, "images", info_.size);
  values_.emplace(std::move(bytes), file_);
  offsets_.emplace(std::move(offsets), file_);
}

void Dataset::Shard::open_labels(const hdf5::Group& group) {
  hdf5::Dataset labels = group.dataset("labels");
  const Shape shape = labels.shape();
  const std::size_t width = info_.targets();
  if (width == 0) {
    require_integers(labels, info_.size, info_.is_text() ? "texts" : "images", info_.size);
  } else {
    if (info_.labels == LabelKind::several_classes && !labels.holds<std::uint8_t>())
      fail(
          "{}: shape {}: labels of several classes must be uint8, 0 or 1 for each class; save one class for each image "
          "as {} integers (one-hot labels: labels.argmax(1))",
          labels.place(), to_string(shape), info_.size);
    if (shape != Shape{info_.size, width} && !(width == 1 && shape == Shape{info_.size}))
      fail("{}: shape {}, but there are {} images and {} names in the attribute '{}'", labels.place(), to_string(shape),
           info_.size, width, names_attribute(info_.labels));
  }
  labels_.emplace(std::move(labels), file_);
}

std::int32_t Dataset::Shard::label(std::size_t sample) const {
  if (info_.labels != LabelKind::one_class) return 0;
  std::int64_t label;
  labels_->read_integers(sample, std::span(&label, 1));
  const auto classes = static_cast<std::int64_t>(info_.classes.size());
  if (label < 0 || label >= classes) fail("label {}, but there are {} classes", label, classes);
  return static_cast<std::int32_t>(label);
}

void Dataset::Shard::read_targets(std::size_t sample, std::span<float> targets) const {
  if (info_.labels == LabelKind::values) {
    labels_->read_floats(sample, targets);
    const auto bad = std::ranges::find_if_not(targets, [](float value) { return std::isfinite(value); });
    if (bad != targets.end())
      fail("value '{}' of its label is {}", info_.classes[static_cast<std::size_t>(bad - targets.begin())], *bad);
    return;
  }
  std::vector<std::uint8_t> row(targets.size());
  labels_->read_bytes(sample, 1, row);
  const auto bad = std::ranges::find_if(row, [](std::uint8_t value) { return value > 1; });
  if (bad != row.end())
    fail("{} for class '{}' in its label, which must be 0 or 1", *bad,
         info_.classes[static_cast<std::size_t>(bad - row.begin())]);
  std::ranges::copy(row, targets.begin());
}

Range Dataset::Shard::encoded_range(std::size_t sample) const {
  std::array<std::int64_t, 2> offsets;
  offsets_->read_integers(sample, offsets);
  const auto [begin, end] = offsets;
  if (begin < 0 || begin > end || static_cast<std::uint64_t>(end) > values_->count())
    fail("from byte {} to byte {} of {}: its offsets are wrong", begin, end, values_->count());
  return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
}

void Dataset::Shard::read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const {
  const Range range = encoded_range(sample);
  if (range.size() > kMostEncodedBytes) fail("{} bytes, more than any image may have", range.size());
  bytes.resize(range.size());
  values_->read_bytes(range.begin, range.size(), bytes);
}

void Dataset::Shard::will_need(Range samples) const {
  if (!info_.encoded()) return values_->will_need(samples.begin, samples.size());
  const std::size_t begin = encoded_range(samples.begin).begin, end = encoded_range(samples.end - 1).end;
  if (begin < end) values_->will_need(begin, end - begin);
}

Dataset::Dataset(const std::vector<std::filesystem::path>& files, const std::string& split) try : split_(split) {
  for (const std::filesystem::path& file : files) add(file);
  if (shards_.empty())
    fail("{}{}: /{}: missing", files.front().string(), files.size() > 1 ? " and the other data files" : "", split);
} catch (const Error& error) {
  fail("{}; create data files with 'annulus import', see src/data/FORMAT.md", error.what());
}

Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

void Dataset::add(const std::filesystem::path& file) {
  const hdf5::Group root = hdf5::File(file).root();
  if (!root.has(split_)) return;
  Shard shard(file, root, split_);
  shard.keep_small(may_keep_);
  mapped_ = mapped_ && !shard.mapped().empty();
  if (!shards_.empty()) require_consistent(shards_.front().file(), shards_.front().info(), file, shard.info());
  const std::size_t size = info_.size + shard.info().size;
  info_ = shard.info();
  info_.size = size;
  ends_.push_back(size);
  shards_.push_back(std::move(shard));
}

Dataset::Place Dataset::find(std::size_t sample) const {
  const auto number = static_cast<std::size_t>(std::ranges::upper_bound(ends_, sample) - ends_.begin());
  return {number, &shards_[number], number == 0 ? sample : sample - ends_[number - 1]};
}

bool Dataset::whole(std::span<const std::size_t> samples) const {
  std::vector<bool> touched(shards_.size());
  for (const std::size_t sample : samples) touched[find(sample).number] = true;
  for (std::size_t shard = 0; shard < shards_.size(); ++shard)
    if (touched[shard] && !shards_[shard].whole()) return false;
  return true;
}

std::string Dataset::place(std::size_t sample) const {
  const Place found = find(sample);
  return fmt::format("{}: {} sample {}", found.shard->file().string(), split_, found.sample);
}

template <class Read>
void Dataset::read(std::size_t sample, const Read& read) const try {
  const Place found = find(sample);
  read(*found.shard, found.sample);
} catch (const Error& error) {
  fail("{}: {}", place(sample), error.what());
}

std::int32_t Dataset::label(std::size_t sample) const {
  std::int32_t label = 0;
  read(sample, [&](const Shard& shard, std::size_t at) { label = shard.label(at); });
  return label;
}

void Dataset::read_targets(std::size_t sample, std::span<float> targets) const {
  if (targets.empty()) return;
  read(sample, [&](const Shard& shard, std::size_t at) { shard.read_targets(at, targets); });
}

void Dataset::read_image(std::size_t sample, std::span<std::uint8_t> pixels) const {
  read(sample, [&](const Shard& shard, std::size_t at) { shard.read_image(at, pixels); });
}

void Dataset::read_encoded(std::size_t sample, std::vector<std::uint8_t>& bytes) const {
  read(sample, [&](const Shard& shard, std::size_t at) { shard.read_encoded(at, bytes); });
}

std::span<const std::uint8_t> Dataset::mapped(const Place& place) const {
  return place.shard->mapped().subspan(place.sample * info_.image_bytes(), info_.image_bytes());
}

bool Dataset::copy(std::span<const std::size_t> samples, std::span<std::uint8_t> pixels, std::span<std::int32_t> labels,
                   std::span<float> targets) const try {
  if (!mapped_ || samples.empty()) return mapped_;
  const std::size_t bytes = info_.image_bytes();
  bool sure = true;
  for (const std::size_t sample : samples) {
    const Place found = find(sample);
    found.shard->check_mapped(found.sample);
  }
  const bool copied = read_mapped([&] {
    Place next = find(samples.front());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Place found = next;
      if (i + 1 < samples.size()) {
        next = find(samples[i + 1]);
        begin_to_fetch(mapped(next));
      }
      found.shard->begin_to_fetch_label(found.sample);
      std::memcpy(pixels.data() + i * bytes, mapped(found).data(), bytes);
      sure = sure && found.shard->surely_whole();
    }
  });
  if (!copied || !(sure || whole(samples))) return false;
  const std::size_t width = info_.targets();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Place found = find(samples[i]);
    labels[i] = found.shard->label(found.sample);
    if (width > 0) found.shard->read_targets(found.sample, targets.subspan(i * width, width));
  }
  return true;
} catch (const Error&) {
  return false;
}

// Hints do not fail: reading a sample reports wrong offsets.
void Dataset::will_need(Range samples) const try {
  while (samples.begin < samples.end) {
    const Place found = find(samples.begin);
    const std::size_t count = std::min(samples.size(), found.shard->info().size - found.sample);
    found.shard->will_need({found.sample, found.sample + count});
    samples.begin += count;
  }
} catch (const Error&) {
}

}  // namespace annulus
