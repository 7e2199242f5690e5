#include <algorithm>
#include <cstdlib>
#include <utility>

#include "kernels/base/error.h"
#include "src/import/label_table.h"
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

// Says what a folder lacks, if it has neither train/ nor folders of classes.
[[noreturn]] void fail_for_layout(const fs::path& source) {
  constexpr const char* kLayouts = "CLASS/*.jpg, or train/CLASS/*.jpg and val/CLASS/*.jpg (or .jpeg, .png)";
  for (const fs::directory_entry& entry : fs::directory_iterator(source))
    if (is_image_name(entry.path()))
      fail("{}: has images, but no folders of classes: expected {}; or give a table of labels with --labels FILE",
           source.string(), kLayouts);
  fail("{}: has no folders of images: expected {}", source.string(), kLayouts);
}

// Finds train/CLASS/ and val/CLASS/, or the classes directly in the source: then all images are training images.
SourcePlan plan_class_folders(const SourceFolders& folders) {
  SourcePlan plan;
  const bool is_divided = fs::is_directory(folders.source / kTrainingName);
  const fs::path train = is_divided ? folders.source / kTrainingName : folders.source;
  plan.classes = folders_in(train).names;
  if (!is_divided) {
    if (plan.classes.empty()) fail_for_layout(folders.source);
    for (const std::string& name : plan.classes)
      if (std::ranges::find(kTestNames, name) != std::end(kTestNames))
        fail("{}: missing beside {}/", (train / kTrainingName).string(), name);
  }
  Hash hash;
  plan.splits.push_back(plan_split("train", train, plan.classes, folders.notes, hash));
  for (const std::string_view name : kTestNames) {
    if (!is_divided || !fs::is_directory(folders.source / name)) continue;
    plan.splits.push_back(plan_split("test", folders.source / name, plan.classes, folders.notes, hash));
    break;
  }
  plan.fingerprint = hash.text();
  return plan;
}

// Takes the images and labels of a table; all are training images.
SourcePlan plan_labelled_images(const SourceFolders& folders) {
  const LabelTable table = read_label_table(folders.labels, folders.source);
  SourcePlan plan;
  if (!table.has_numbers()) plan.classes = table.names();
  Hash hash;
  add_facts(hash, folders.labels);
  NoteWriter writer(folders.notes, "train", hash);
  for (const LabelTable::Row& row : table.rows) {
    const auto label =
        plan.classes.empty()
            ? std::strtoul(row.label.c_str(), nullptr, 10)
            : static_cast<std::size_t>(std::ranges::lower_bound(plan.classes, row.label) - plan.classes.begin());
    writer.add(label, {row.image.string(), row.problem});
  }
  plan.splits.push_back(writer.finish());
  plan.fingerprint = hash.text();
  return plan;
}

SourcePlan plan_folder(const SourceFolders& folders) {
  SourcePlan plan = folders.labels.empty() ? plan_class_folders(folders) : plan_labelled_images(folders);
  plan.shuffle = true;
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

bool has_images(const fs::path& source) {
  return fs::is_directory(source) && any_file_in(source, is_image_name);
}

}  // namespace

const SourceFormat kFolderSource{
    "folder",
    "a folder with CLASS/*.jpg, or with train/CLASS/*.jpg and val/CLASS/*.jpg (or validation/, test/); also .jpeg and "
    ".png; CLASS may have subfolders. With --labels, a folder with images",
    has_images, plan_folder, read_folder_piece};

}  // namespace annulus
