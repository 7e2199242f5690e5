#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "kernels/base/error.h"
#include "src/import/archive.h"
#include "src/import/source.h"
#include "src/import/split_folders.h"
#include "src/import/webdataset.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

// Labels come from a number in KEY.cls beside KEY.jpg (WebDataset), the image's folder, or the archive's name
// (ImageNet).
constexpr const char *kByNumber = "numbers", *kByFolder = "folders", *kByArchive = "archives";

constexpr std::size_t kMembersLookedAt = 64;  // to detect the variant
constexpr const char* kDigits = "0123456789";

// Returns the name without an archive's ending; empty if there is no such ending.
std::string archive_stem(const std::string& name) {
  for (const std::string_view ending : {".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd"}) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return {};
}

std::vector<std::string> archives_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::error_code none;  // unreadable archives are reported on reading
    if (!entry.is_directory(none) && !is_hidden(name) && !archive_stem(name).empty()) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// Finds "train" in "train-000.tar" and "imagenet-train-000.tar", but not in "trainer.tar".
bool has_word(std::string_view name, std::string_view word) {
  const auto is_part = [&](std::size_t at) {
    return at < name.size() && std::isalpha(static_cast<unsigned char>(name[at]));
  };
  for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) return true;
  }
  return false;
}

// Returns paths within the source: archives in the split's folder or, if there is no such folder, archives with the
// split in their names.
std::vector<std::string> archives_of(const fs::path& source, std::string_view split) {
  std::vector<std::string> paths;
  if (fs::is_directory(source / split)) {
    for (const std::string& name : archives_in(source / split)) paths.push_back(std::string(split) + "/" + name);
  } else {
    for (const std::string& name : archives_in(source)) {
      if (has_word(name, split)) paths.push_back(name);
    }
  }
  return paths;
}

std::string class_by_folder(const std::string& member) {
  const std::string name = fs::path(member).parent_path().filename().string();
  return name == "." ? std::string() : name;
}

std::string class_by_archive(const std::string& path) {
  return archive_stem(fs::path(path).filename().string());
}

// Describes an archive's first members.
struct FirstMembers {
  std::string variant;  // empty if there is no image
  std::string folder;   // the first image's
  std::string beside;   // a file beside an image, under the same key, such as its caption
  std::string damage;   // why the archive cannot be read further
};

FirstMembers look_at(const fs::path& file) {
  FirstMembers first;
  std::set<std::string> images;
  std::map<std::string, std::string> others;  // by key
  try {
    ArchiveReader archive(file);
    for (std::size_t i = 0; i < kMembersLookedAt && archive.next(); ++i) {
      const MemberName name = MemberName::of(archive.name());
      if (name.is_label()) {
        first.variant = kByNumber;
        return first;
      }
      if (!is_image_name(archive.name())) {
        if (name.ending() != "xml") others.emplace(name.key, archive.name());  // ImageNet's bounding boxes
        continue;
      }
      if (images.empty()) first.folder = class_by_folder(archive.name());
      images.insert(name.key);
    }
  } catch (const ArchiveError& error) {
    first.damage = error.what();
  }
  if (!images.empty()) first.variant = first.folder.empty() ? kByArchive : kByFolder;
  for (const auto& [key, other] : others)
    if (images.contains(key)) first.beside = other;
  return first;
}

// Returns whether the names differ only in consecutive, equally wide numbers with leading zeros: shards, not classes.
bool are_shards(const std::vector<std::string>& archives) {
  if (archives.size() < 2) return false;
  std::set<std::string> texts;
  std::set<std::size_t> numbers, widths;
  for (const std::string& path : archives) {
    const std::string name = class_by_archive(path);
    const std::size_t begin = std::min(name.find_first_of(kDigits), name.size());
    const std::size_t end = std::min(name.find_first_not_of(kDigits, begin), name.size());
    if (end - begin < 3 || end - begin > 9) return false;
    texts.insert(name.substr(0, begin) + name.substr(end));
    numbers.insert(std::stoul(name.substr(begin, end - begin)));
    widths.insert(end - begin);
  }
  return texts.size() == 1 && widths.size() == 1 && numbers.size() == archives.size() &&
         *numbers.rbegin() - *numbers.begin() + 1 == numbers.size() && *numbers.begin() <= 1;
}

// Throws Error if taking archive names as classes would make each shard a class in a data set without labels.
void expect_classes(const fs::path& source, const std::vector<std::string>& archives, const std::string& path,
                    const FirstMembers& first) {
  const char* missing =
      "its images have no labels: KEY.cls, with the class's number, is missing beside KEY.jpg (WebDataset), and "
      "so are class folders";
  const fs::path file = source / path;
  if (!first.beside.empty()) fail("{}: {} (beside an image there is {})", file.string(), missing, first.beside);
  if (are_shards(archives))
    fail("{}: {}; the archives' names are numbers of shards, not of classes", file.string(), missing);
  if (first.variant == kByFolder) return;
  if (archives.size() == 1) fail("{}: {}; archives named by class would be several", file.string(), missing);
  if (!fs::path(path).has_parent_path())
    fail("{}: {}; archives named by class must lie in train/ and val/", file.string(), missing);
}

// Detects the variant from the first training archive whose first image comes before any damage. Reading reports
// damaged archives.
std::string find_variant(const fs::path& source, const std::vector<std::string>& paths) {
  std::string damage;
  for (const std::string& path : paths) {
    const FirstMembers first = look_at(source / path);
    if (first.variant.empty() && first.damage.empty())
      fail("{}: has no images (.jpg, .jpeg, .png) among its first members", (source / path).string());
    if (damage.empty()) damage = first.damage;
    if (first.variant.empty()) continue;
    const bool is_named = first.variant == kByArchive || first.folder == class_by_archive(path);
    if (is_named && first.variant != kByNumber) expect_classes(source, paths, path, first);
    return first.variant;
  }
  fail("{}: {}", (source / paths.front()).string(), damage);
}

// Reads up to a truncation, which reading the piece reports.
std::vector<std::string> find_folders(const SourceFolders& folders, const SourceSplit& split, std::size_t piece,
                                      const PassSample& pass) {
  std::set<std::string> classes;
  try {
    ArchiveReader archive(folders.source / split.pieces[piece]);
    while (archive.next() && pass(archive.size())) {
      const std::string name = class_by_folder(archive.name());
      if (archive.is_file() && is_image_name(archive.name()) && !name.empty()) classes.insert(name);
    }
  } catch (const ArchiveError&) {
  }
  return {classes.begin(), classes.end()};
}

std::vector<std::string> names_of(const std::vector<std::string>& archives) {
  std::set<std::string> classes;
  std::ranges::transform(archives, std::inserter(classes, classes.end()), class_by_archive);
  return {classes.begin(), classes.end()};
}

// A piece is an archive, named by the path within the source.
SourcePlan plan_tar(const SourceFolders& folders) {
  SourcePlan plan;
  plan.splits.push_back({"train", archives_of(folders.source, kTrainingName)});
  const std::vector<std::string>& archives = plan.splits[0].pieces;
  if (archives.empty()) {
    fail("{}: has no archives of training images: train/*.tar or *train*.tar (or .tar.gz, .tgz, .tar.zst)",
         folders.source.string());
  }
  plan.variant = find_variant(folders.source, archives);
  plan.classes_in_pieces = plan.variant == kByFolder;
  if (plan.variant == kByArchive) plan.classes = names_of(archives);
  plan.shuffle = plan.variant != kByNumber;
  for (const std::string_view name : kTestNames) {
    const std::vector<std::string> test = archives_of(folders.source, name);
    if (test.empty()) continue;
    plan.splits.push_back({"test", test});
    break;
  }
  std::vector<fs::path> files;
  for (const SourceSplit& split : plan.splits) {
    for (const std::string& path : split.pieces) files.push_back(folders.source / path);
  }
  plan.fingerprint = fingerprint_of(files);
  return plan;
}

// Fills in the label, or reports a label problem if the sample has no other problem.
void label_by_name(SourceSample& sample, const std::string& name, const SourcePlan& plan) {
  const auto found = std::ranges::find(plan.classes, name);
  sample.label = found - plan.classes.begin();
  if (found == plan.classes.end() && sample.problem.empty())
    sample.problem = fmt::format("'{}' is not a class of the training images", name);
}

// Returns false if reading should stop.
bool read_named(ArchiveReader& archive, const std::string& path, const SourcePlan& plan, const fs::path& file,
                const TakeSample& take) {
  std::vector<std::uint8_t> bytes;
  while (archive.next()) {
    if (MemberName::of(archive.name()).is_label())
      fail("{}: {}: a label, but the first {} members have none; put KEY.cls next to KEY.jpg (tar --sort=name)",
           file.string(), archive.name(), kMembersLookedAt);
    if (!is_image_name(archive.name())) continue;
    std::string problem = read_member(archive, bytes);
    SourceSample sample{fmt::format("{}: {}", file.string(), archive.name()), 0, bytes, std::move(problem)};
    label_by_name(sample, plan.variant == kByArchive ? class_by_archive(path) : class_by_folder(archive.name()), plan);
    if (!take(sample)) return false;
  }
  return true;
}

// Reports a damaged archive as an unusable sample at the end.
void read_tar_piece(const SourceFolders& folders, const SourcePlan& plan, const SourceSplit& split, std::size_t piece,
                    const TakeSample& take) {
  const std::string& path = split.pieces[piece];
  const fs::path file = folders.source / path;
  std::optional<ArchiveError> failure;
  try {
    ArchiveReader archive(file);
    if (plan.variant == kByNumber)
      read_webdataset(archive, file, take);
    else
      read_named(archive, path, plan, file, take);
  } catch (const ArchiveError& error) {
    failure = error;
  }
  if (failure) take({file.string(), 0, {}, failure->what()});
}

}  // namespace

const SourceFormat kTarSource{"tar",
                              "a folder with train/*.tar and val/*.tar (or validation/, test/), or with these words in "
                              "the archives' names; also .tar.gz, .tgz, .tar.zst. Labels are numbers in KEY.cls beside "
                              "KEY.jpg (WebDataset), the images' folders, or the archives' names",
                              plan_tar, read_tar_piece, find_folders};

}  // namespace annulus
