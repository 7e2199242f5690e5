#include <algorithm>
#include <array>
#include <sstream>

#include "kernels/base/error.h"
#include "src/import/source.h"
#include "src/io/file_io.h"

namespace annulus {
namespace {

constexpr std::size_t kMostNamesBytes = 1 << 20;
constexpr std::size_t kSide = 32, kChannels = 3, kPlane = kSide * kSide;

// The binary versions of CIFAR-10 and CIFAR-100 (https://www.cs.toronto.edu/~kriz/cifar.html): a record is one label,
// or a coarse and a fine one, followed by the pixels, plane after plane.
struct Variant {
  const char* names;  // the file of the class names, which identifies the variant
  std::size_t labels;
  std::size_t classes;

  std::size_t record_bytes() const { return labels + kChannels * kPlane; }
};

constexpr std::array<Variant, 2> kVariants{{{"batches.meta.txt", 1, 10}, {"fine_label_names.txt", 2, 100}}};

const Variant& variant_of(const std::filesystem::path& folder) {
  for (const Variant& variant : kVariants) {
    if (std::filesystem::exists(folder / variant.names)) return variant;
  }
  fail("{}: has neither {} (CIFAR-10) nor {} (CIFAR-100); the source must be the folder of the binary version",
       folder.string(), kVariants[0].names, kVariants[1].names);
}

std::vector<std::string> read_names(const std::filesystem::path& file, const Variant& variant) {
  std::vector<std::uint8_t> bytes;
  read_file(file, kMostNamesBytes, bytes);
  std::istringstream stream({bytes.begin(), bytes.end()});
  std::vector<std::string> names;
  for (std::string line; std::getline(stream, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (names.size() != variant.classes) {
    fail("{}: has {} names instead of {}", file.string(), names.size(), variant.classes);
  }
  return names;
}

// Names of the files, in order.
std::vector<std::string> training_files(const std::filesystem::path& folder, const Variant& variant) {
  if (variant.labels == 2) return {"train.bin"};
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("data_batch_") && name.ends_with(".bin")) names.push_back(name);
  }
  if (names.empty()) fail("{}: has no data_batch_*.bin", folder.string());
  std::ranges::sort(names);
  return names;
}

std::size_t records_in(const std::filesystem::path& file, const Variant& variant) {
  if (!std::filesystem::exists(file)) fail("{}: missing", file.string());
  const std::size_t bytes = size_of(open_to_read(file), file);
  if (bytes == 0 || bytes % variant.record_bytes() != 0) {
    fail("{}: {} bytes, which is not a multiple of the record size {}; fetch the file again", file.string(), bytes,
         variant.record_bytes());
  }
  return bytes / variant.record_bytes();
}

// A piece is a file.
SourcePlan plan_cifar(const SourceFolders& folders) {
  const Variant& variant = variant_of(folders.source);
  SourcePlan plan;
  plan.classes = read_names(folders.source / variant.names, variant);
  plan.splits = {{"train", training_files(folders.source, variant)},
                 {"test", {variant.labels == 2 ? "test.bin" : "test_batch.bin"}}};
  plan.pixels = PixelShape{{kSide, kSide}, kChannels};
  std::vector<std::filesystem::path> files;
  for (const SourceSplit& split : plan.splits) {
    for (const std::string& piece : split.pieces) files.push_back(folders.source / piece);
  }
  for (const std::filesystem::path& file : files) records_in(file, variant);
  plan.fingerprint = fingerprint_of(files);
  return plan;
}

void interleave(std::span<const std::uint8_t> planes, std::span<std::uint8_t> pixels) {
  for (std::size_t channel = 0; channel < kChannels; ++channel) {
    for (std::size_t i = 0; i < kPlane; ++i) pixels[i * kChannels + channel] = planes[channel * kPlane + i];
  }
}

void read_cifar_piece(const SourceFolders& folders, const SourcePlan&, const SourceSplit& split, std::size_t piece,
                      const TakeSample& take) {
  const Variant& variant = variant_of(folders.source);
  const std::filesystem::path file = folders.source / split.pieces[piece];
  const std::size_t records = records_in(file, variant);
  const FileDescriptor descriptor = open_to_read(file);
  std::vector<std::uint8_t> record(variant.record_bytes()), pixels(kChannels * kPlane);
  for (std::size_t i = 0; i < records; ++i) {
    read_at(descriptor, file, i * record.size(), record);
    interleave(std::span(record).subspan(variant.labels), pixels);
    if (!take({fmt::format("{}: sample {}", file.string(), i), record[variant.labels - 1], pixels, {}})) return;
  }
}

}  // namespace

const SourceFormat kCifarSource{"cifar", "the folder of the binary version of CIFAR-10 or CIFAR-100 (fine labels)",
                                plan_cifar, read_cifar_piece};

}  // namespace annulus
