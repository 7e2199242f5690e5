#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <set>

#include "kernels/base/error.h"
#include "src/import/archive.h"
#include "src/import/source.h"
#include "src/import/split_folders.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

// The origin of labels: a number in KEY.cls beside KEY.jpg (WebDataset), the image's folder, or the archive's name
// (ImageNet).
constexpr const char *kByNumber = "numbers", *kByFolder = "folders", *kByArchive = "archives";

constexpr std::size_t kMembersLookedAt = 64;  // to detect the variant

// The name without the ending of an archive; empty if it has none.
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

// "train" in "train-000.tar" and "imagenet-train-000.tar", but not in "trainer.tar".
bool has_word(std::string_view name, std::string_view word) {
  const auto is_part = [&](std::size_t at) {
    return at < name.size() && std::isalpha(static_cast<unsigned char>(name[at]));
  };
  for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) return true;
  }
  return false;
}

// Paths within the source: the archives in the folder of the split's name or, if there is none, those with the split in
// their names.
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

// Detects the variant by the first readable members of an archive; empty if there is no image among them. `damage`: why
// it cannot be read further.
std::string find_variant(const fs::path& file, std::string& damage) {
  std::string variant;
  try {
    ArchiveReader archive(file);
    for (std::size_t i = 0; i < kMembersLookedAt && archive.next(); ++i) {
      if (archive.name().ends_with(".cls")) return kByNumber;
      if (variant.empty() && is_image_name(archive.name()))
        variant = class_by_folder(archive.name()).empty() ? kByArchive : kByFolder;
    }
  } catch (const ArchiveError& error) {
    damage = error.what();
  }
  return variant;
}

// Detects the variant by the first training archive that is not damaged before its first image. Damaged archives are
// reported on reading.
std::string find_variant(const fs::path& source, const std::vector<std::string>& paths) {
  std::string variant, path, damage;
  for (auto next = paths.begin(); variant.empty() && next != paths.end(); ++next) {
    std::string problem;
    variant = find_variant(source / *next, problem);
    if (variant.empty() && problem.empty())
      fail("{}: has no images (.jpg, .jpeg, .png) among its first members", (source / *next).string());
    if (damage.empty()) damage = problem;
    path = *next;
  }
  if (variant.empty()) fail("{}: {}", (source / paths.front()).string(), damage);
  if (variant == kByArchive && !fs::path(path).has_parent_path()) {
    fail(
        "{}: has no labels: neither KEY.cls beside KEY.jpg, nor class folders; archives named by class must lie in "
        "train/ and val/",
        (source / path).string());
  }
  return variant;
}

// Reads up to a truncation, which is reported on reading the piece.
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

// A piece is an archive, named by its path within the source.
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

// Fills in the label; or its problem, if the sample has no other.
void label_by_name(SourceSample& sample, const std::string& name, const SourcePlan& plan) {
  const auto found = std::ranges::find(plan.classes, name);
  sample.label = found - plan.classes.begin();
  if (found == plan.classes.end() && sample.problem.empty())
    sample.problem = fmt::format("'{}' is not a class of the training images", name);
}

// Returns why the member cannot be used; empty if it can.
std::string read_member(ArchiveReader& archive, std::vector<std::uint8_t>& bytes) {
  bytes.clear();
  if (!archive.is_file()) return fmt::format("{}: a link or a device; only files are supported", archive.name());
  if (archive.size() > kMostImageBytes)
    return fmt::format("{}: {} bytes; at most {} are supported", archive.name(), archive.size(), kMostImageBytes);
  archive.read(bytes);
  return {};
}

// Returns false if reading should stop.
bool read_named(ArchiveReader& archive, const std::string& path, const SourcePlan& plan, const fs::path& file,
                const TakeSample& take) {
  std::vector<std::uint8_t> bytes;
  while (archive.next()) {
    if (!is_image_name(archive.name())) continue;
    std::string problem = read_member(archive, bytes);
    SourceSample sample{fmt::format("{}: {}", file.string(), archive.name()), 0, bytes, std::move(problem)};
    label_by_name(sample, plan.variant == kByArchive ? class_by_archive(path) : class_by_folder(archive.name()), plan);
    if (!take(sample)) return false;
  }
  return true;
}

// The files of one sample: their paths are the same up to the first dot of the name.
struct Group {
  std::string key;
  std::vector<std::uint8_t> image, label;
  bool has_image = false, has_label = false;
  std::string problem;
};

std::pair<std::string, std::string> key_and_ending(const std::string& name) {
  const std::size_t begin = name.rfind('/') + 1;  // npos + 1 is 0
  const std::size_t dot = name.find('.', begin);
  if (dot == name.npos) return {name, {}};
  return {name.substr(0, dot), name.substr(dot)};
}

void add_member(Group& group, ArchiveReader& archive, const std::string& ending) {
  if (ending == ".cls") {
    group.problem += read_member(archive, group.label);
    group.has_label = true;
  } else if (is_image_name("x" + ending) && ending.rfind('.') == 0) {
    group.problem += read_member(archive, group.image);
    group.has_image = true;
  }
}

bool take_group(const Group& group, const fs::path& file, const TakeSample& take) {
  if (!group.has_image && !group.has_label) return true;
  SourceSample sample{fmt::format("{}: {}", file.string(), group.key), 0, group.image, {}};
  std::string_view text(reinterpret_cast<const char*>(group.label.data()), group.label.size());
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), sample.label);
  if (!group.problem.empty())
    sample.problem = group.problem;
  else if (!group.has_image)
    sample.problem = "no image (.jpg, .jpeg, .png) beside its .cls";
  else if (!group.has_label)
    sample.problem = "no .cls beside it";
  else if (error != std::errc() || rest != text.data() + text.size())
    sample.problem = "its .cls does not hold a whole number";
  return take(sample);
}

// If the archive is damaged, a sample that is complete before the damage is not lost.
bool read_numbered(ArchiveReader& archive, const fs::path& file, const TakeSample& take) {
  Group group;
  try {
    while (archive.next()) {
      auto [key, ending] = key_and_ending(archive.name());
      if (key != group.key) {
        if (!take_group(group, file, take)) return false;
        group = {};
        group.key = std::move(key);
      }
      add_member(group, archive, ending);
    }
  } catch (const ArchiveError&) {
    if (group.has_image && group.has_label) take_group(group, file, take);
    throw;
  }
  return take_group(group, file, take);
}

// Damage of an archive is reported as one unusable sample at its end.
void read_tar_piece(const SourceFolders& folders, const SourcePlan& plan, const SourceSplit& split, std::size_t piece,
                    const TakeSample& take) {
  const std::string& path = split.pieces[piece];
  const fs::path file = folders.source / path;
  std::optional<ArchiveError> failure;
  try {
    ArchiveReader archive(file);
    if (plan.variant == kByNumber)
      read_numbered(archive, file, take);
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
