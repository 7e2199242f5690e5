#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "kernels/base/error.h"
#include "src/import/archive.h"
#include "src/import/archive_files.h"
#include "src/import/source.h"
#include "src/import/split_folders.h"
#include "src/import/tar_variant.h"
#include "src/import/webdataset.h"
#include "src/io/json.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

// Returns why a member's path is not a training image's, if its class is a folder: "val/cat/1.jpg" in an archive of
// training images. Empty if it is one.
std::string problem_of_path(const std::string& member, const std::string& archive) {
  for (const fs::path& part : fs::path(member).parent_path().parent_path())
    if (std::ranges::find(kTestNames, part.string()) != std::end(kTestNames))
      return fmt::format("in {}/ within {}, whose images are training images: unpack the archive", part.string(),
                         archive);
  return {};
}

// Returns the class that a training archive's member names: an image's folder, or a field of KEY.json. Empty: none.
std::string class_of_member(ArchiveReader& archive, const std::string& field, const std::string& piece) {
  const std::string& name = archive.name();
  if (!archive.is_file()) return {};
  if (field.empty()) return is_image_name(name) && problem_of_path(name, piece).empty() ? class_by_folder(name) : "";
  if (MemberName::of(name).field != "json") return {};
  const nlohmann::json fields = read_fields(archive);
  return fields.is_object() ? member_or(fields, field.c_str(), std::string()) : std::string();
}

// Reads up to a truncation, which reading the piece reports.
std::vector<std::string> find_names(const SourceFolders& folders, const SourcePlan& plan, std::size_t piece,
                                    const PassSample& pass) {
  const std::string field = label_field_of(plan.variant);
  const std::string& path = plan.splits.front().pieces[piece];
  std::set<std::string> classes;
  try {
    ArchiveReader archive(archive_of(folders, path));
    while (archive.next() && pass(archive.size()))
      if (const std::string name = class_of_member(archive, field, path); !name.empty()) classes.insert(name);
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
  plan.splits.push_back({"train", training_archives(folders.source)});
  const std::vector<std::string>& archives = plan.splits[0].pieces;
  if (archives.empty())
    fail("{}: has no archives: *.tar, train/*.tar or *train*.tar (or .tar.gz, .tgz, .tar.zst)",
         folders.source.string());
  plan.variant = find_variant(folders, archives);
  plan.classes_in_pieces = plan.variant == kByFolder || plan.variant.starts_with(kByFieldName);
  if (plan.variant == kByArchive) plan.classes = names_of(archives);
  plan.shuffle = plan.variant == kByFolder || plan.variant == kByArchive;
  for (const std::string_view name : kTestNames) {
    if (!fs::is_directory(folders.source)) break;
    const std::vector<std::string> test = archives_of(folders.source, name);
    if (test.empty()) continue;
    plan.splits.push_back({"test", test});
    break;
  }
  std::vector<fs::path> files;
  for (const SourceSplit& split : plan.splits) {
    for (const std::string& path : split.pieces) files.push_back(archive_of(folders, path));
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
bool read_named(ArchiveReader& archive, const std::string& path, const SourcePlan& plan, bool training,
                const fs::path& file, const TakeSample& take) {
  std::vector<std::uint8_t> bytes;
  while (archive.next()) {
    if (MemberName::of(archive.name()).ending() == "cls")
      fail("{}: {}: a label, but the first {} members have none; put KEY.cls next to KEY.jpg (tar --sort=name)",
           file.string(), archive.name(), kMembersLookedAt);
    if (!is_image_name(archive.name())) continue;
    std::string problem = read_member(archive, bytes);
    if (training && problem.empty() && plan.variant == kByFolder) problem = problem_of_path(archive.name(), path);
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
  const fs::path file = archive_of(folders, path);
  const std::string field = label_field_of(plan.variant);
  std::optional<ArchiveError> failure;
  try {
    ArchiveReader archive(file);
    if (plan.variant == kByNumber)
      read_webdataset(archive, file, label_numbers(), take);
    else if (!field.empty())
      read_webdataset(archive, file, label_fields(field, plan.classes), take);
    else
      read_named(archive, path, plan, split.name == "train", file, take);
  } catch (const ArchiveError& error) {
    failure = error;
  }
  if (failure) take({file.string(), 0, {}, failure->what()});
}

// An archive, or a folder with archives, or with a folder of training archives.
bool has_archives(const fs::path& source) {
  if (!fs::is_directory(source)) return !archive_stem(source.filename().string()).empty();
  return !archives_in(source).empty() || !archives_of(source, kTrainingName).empty();
}

}  // namespace

const SourceFormat kTarSource{
    "tar",
    "an archive, or a folder with train/*.tar and val/*.tar (or validation/, test/), or with these words in the "
    "archives' names, or with other archives; also .tar.gz, .tgz, .tar.zst. Labels are numbers in KEY.cls beside "
    "KEY.jpg "
    "(WebDataset), a field of KEY.json (--label-key), the images' folders, or the archives' names",
    has_archives,
    plan_tar,
    read_tar_piece,
    find_names};

}  // namespace annulus
