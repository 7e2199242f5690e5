#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "src/import/sample_notes.h"
#include "src/import/source.h"
#include "src/import/split_folders.h"
#include "src/io/file_io.h"
#include "src/io/hash.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

struct ClassFolders {
  std::vector<std::string> names;   // sorted by bytes, as Python and torchvision do
  std::vector<FoundFile> problems;  // link cycles etc.
};

ClassFolders folders_in(const fs::path& folder) {
  ClassFolders found;
  const fs::path real = fs::canonical(folder);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (is_hidden(entry.path())) continue;
    std::error_code error;
    const bool is_folder = entry.is_directory(error);
    if (is_folder && is_within(real, fs::weakly_canonical(entry.path())))
      found.problems.push_back({entry.path().string(), kLeadsUp});
    else if (is_folder)
      found.names.push_back(entry.path().filename().string());
    else if (error && error != std::errc::no_such_file_or_directory)
      found.problems.push_back({entry.path().string(), error.message()});
  }
  std::ranges::sort(found.names);
  std::ranges::sort(found.problems, {}, &FoundFile::path);
  return found;
}

SourceSplit plan_split(const std::string& name, const fs::path& folder, const std::vector<std::string>& classes,
                       const fs::path& notes, Hash& hash) {
  NoteWriter writer(notes, name, hash);
  const ClassFolders folders = folders_in(folder);
  for (const FoundFile& problem : folders.problems) writer.add(0, problem);
  for (const std::string& found : folders.names) {
    const auto label = std::ranges::find(classes, found);
    if (label == classes.end()) fail("{}: no such class among the training images", (folder / found).string());
    const std::vector<FoundFile> images = images_in(folder / found);
    if (images.empty()) fail("{}: has no images (.jpg, .jpeg, .png)", (folder / found).string());
    for (const FoundFile& image : images) writer.add(static_cast<std::size_t>(label - classes.begin()), image);
  }
  SourceSplit split = writer.finish();
  if (split.pieces.empty()) fail("{}: has no class folders", folder.string());
  return split;
}

SourcePlan plan_folder(const SourceFolders& folders) {
  const fs::path train = folders.source / kTrainingName;
  if (!fs::is_directory(train)) {
    fail("{}: missing; the source must have train/CLASS/*.jpg and val/CLASS/*.jpg (or .jpeg, .png)", train.string());
  }
  SourcePlan plan;
  plan.shuffle = true;
  plan.classes = folders_in(train).names;
  Hash hash;
  plan.splits.push_back(plan_split("train", train, plan.classes, folders.notes, hash));
  for (const std::string_view name : kTestNames) {
    if (!fs::is_directory(folders.source / name)) continue;
    plan.splits.push_back(plan_split("test", folders.source / name, plan.classes, folders.notes, hash));
    break;
  }
  plan.fingerprint = hash.text();
  return plan;
}

void read_folder_piece(const SourceFolders& folders, const SourcePlan&, const SourceSplit& split, std::size_t piece,
                       const TakeSample& take) {
  std::vector<std::uint8_t> bytes;
  for (auto& [label, file] : read_notes(folders.notes / split.pieces[piece])) {
    SourceSample sample{std::move(file.path), static_cast<std::int64_t>(label), {}, std::move(file.problem)};
    try {
      bytes.clear();
      if (sample.problem.empty()) read_file(sample.name, kMostImageBytes, bytes);
      sample.bytes = bytes;
    } catch (const std::exception& error) {
      sample.problem = error.what();
    }
    if (!take(sample)) return;
  }
}

}  // namespace

const SourceFormat kFolderSource{
    "folder",
    "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg (or validation/, test/); also .jpeg and .png; CLASS may have "
    "subfolders",
    plan_folder, read_folder_piece};

}  // namespace annulus
