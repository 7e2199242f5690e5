#include "src/import/tar_variant.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "src/import/archive.h"
#include "src/import/archive_files.h"
#include "src/import/split_folders.h"
#include "src/import/webdataset.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDigits = "0123456789";

// Fields of KEY.json that are taken for the label without --label-key, if there is no KEY.cls.
constexpr std::array<const char*, 6> kLabelKeys{"label", "class", "cls", "class_id", "target", "category"};

// Describes an archive's first members.
struct FirstMembers {
  std::string variant;  // empty if there is no image
  std::string folder;   // the first image's
  std::string beside;   // a file beside an image, under the same key, such as its caption
  std::string fields;   // the first KEY.json's, if none of them is the label
  std::string damage;   // why the archive cannot be read further
};

// Finds the label's field in a KEY.json: `wanted`, or if empty one of kLabelKeys. Sets the variant, or the fields.
void look_at_fields(ArchiveReader& archive, const std::string& wanted, FirstMembers& first) {
  const nlohmann::json fields = read_fields(archive);
  if (!fields.is_object()) return;
  std::vector<std::string> keys(kLabelKeys.begin(), kLabelKeys.end()), present;
  if (!wanted.empty()) keys = {wanted};
  for (const auto& [key, value] : fields.items()) present.push_back(key);
  for (const std::string& key : keys) {
    if (!fields.contains(key)) continue;
    if (fields[key].is_number_integer()) first.variant = std::string(kByFieldNumber) + key;
    if (fields[key].is_string()) first.variant = std::string(kByFieldName) + key;
    if (!first.variant.empty()) return;
  }
  if (first.fields.empty()) first.fields = fmt::format("{}", fmt::join(present, ", "));
}

FirstMembers look_at(const fs::path& file, const std::string& label_key) {
  FirstMembers first;
  std::set<std::string> images;
  std::map<std::string, std::string> others;  // by key
  try {
    ArchiveReader archive(file);
    for (std::size_t i = 0; i < kMembersLookedAt && archive.next(); ++i) {
      const MemberName name = MemberName::of(archive.name());
      if (name.ending() == "cls" && label_key.empty()) {
        first.variant = kByNumber;
        return first;
      }
      if (name.field == "json" && first.variant.empty()) look_at_fields(archive, label_key, first);
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
  if (images.empty())
    first.variant.clear();
  else if (first.variant.empty())
    first.variant = first.folder.empty() ? kByArchive : kByFolder;
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
void expect_classes(const fs::path& file, const std::vector<std::string>& archives, const FirstMembers& first) {
  const char* missing =
      "its images have no labels: KEY.cls, with the class's number, is missing beside KEY.jpg (WebDataset), and "
      "so are class folders";
  if (!first.fields.empty())
    fail("{}: {}; if a field of KEY.json is the label, name it with --label-key: {}", file.string(), missing,
         first.fields);
  if (!first.beside.empty()) fail("{}: {} (beside an image there is {})", file.string(), missing, first.beside);
  if (are_shards(archives))
    fail("{}: {}; the archives' names are numbers of shards, not of classes", file.string(), missing);
  if (first.variant == kByFolder) return;
  if (archives.size() == 1) fail("{}: {}; archives named by class would be several", file.string(), missing);
  if (has_word(class_by_archive(archives.front()), kTrainingName))
    fail("{}: {}; archives named by class must lie in train/ and val/", file.string(), missing);
}

}  // namespace

std::string find_variant(const SourceFolders& folders, const std::vector<std::string>& paths) {
  std::string damage;
  for (const std::string& path : paths) {
    const fs::path file = archive_of(folders, path);
    const FirstMembers first = look_at(file, folders.label_key);
    if (first.variant.empty() && first.damage.empty())
      fail("{}: has no images (.jpg, .jpeg, .png) among its first members", file.string());
    if (damage.empty()) damage = first.damage;
    if (first.variant.empty()) continue;
    const bool by_name = first.variant == kByArchive || first.variant == kByFolder;
    if (by_name && !folders.label_key.empty())
      fail("{}: --label-key {}: no KEY.json among the first members has this field with a number or a name{}",
           file.string(), folders.label_key, first.fields.empty() ? "" : "; fields: " + first.fields);
    if (first.variant == kByArchive || (by_name && first.folder == class_by_archive(path)))
      expect_classes(file, paths, first);
    return first.variant;
  }
  fail("{}: {}", archive_of(folders, paths.front()).string(), damage);
}

std::string label_field_of(const std::string& variant) {
  for (const std::string_view prefix : {kByFieldNumber, kByFieldName})
    if (variant.starts_with(prefix)) return variant.substr(prefix.size());
  return {};
}

std::string class_by_folder(const std::string& member) {
  const std::string name = fs::path(member).parent_path().filename().string();
  return name == "." ? std::string() : name;
}

std::string class_by_archive(const std::string& path) {
  return archive_stem(fs::path(path).filename().string());
}

}  // namespace annulus
