#include <algorithm>
#include <cstdlib>
#include <optional>
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

// Lists the rows' images. Labels are numbers, or names among the classes.
SourceSplit plan_rows(const std::string& name, const std::vector<LabelTable::Row>& rows,
                      const std::vector<std::string>& classes, const fs::path& notes, Hash& hash) {
  NoteWriter writer(notes, name, hash);
  for (const LabelTable::Row& row : rows) {
    std::size_t label = std::strtoul(row.label.c_str(), nullptr, 10);
    std::string problem = row.problem;
    if (!classes.empty()) {
      const auto found = std::ranges::lower_bound(classes, row.label);
      label = static_cast<std::size_t>(found - classes.begin());
      if (problem.empty() && (found == classes.end() || *found != row.label))
        problem = fmt::format("'{}' is not a class of the training images", row.label);
    }
    writer.add(label, {row.image.string(), std::move(problem)});
  }
  return writer.finish();
}

// A table, and the folder that the images' names start from.
struct Table {
  fs::path file, images;
};

// Takes images and labels from a training table and, if there is one, a test table.
SourcePlan plan_tables(const SourceFolders& folders, const Table& train, const std::optional<Table>& test) {
  SourcePlan plan;
  Hash hash;
  const auto add = [&](const char* split, const Table& table) {
    const LabelTable labels = read_label_table(table.file, table.images);
    if (plan.splits.empty() && !labels.has_numbers()) plan.classes = labels.names();
    if (plan.classes.empty() && !labels.has_numbers())
      fail("{}: its labels are names, but the training images' are numbers", table.file.string());
    add_facts(hash, table.file);
    plan.splits.push_back(plan_rows(split, labels.rows, plan.classes, folders.notes, hash));
  };
  add("train", train);
  if (test) add("test", *test);
  plan.fingerprint = hash.text();
  return plan;
}

// Hugging Face's imagefolder: metadata.csv or metadata.jsonl with the labels, in the source or in train/ and val/.
// Class folders are preferred to a table without a column called label. Returns nothing if there is no table.
std::optional<SourcePlan> plan_metadata(const SourceFolders& folders) {
  const fs::path& source = folders.source;
  const fs::path train = fs::is_directory(source / kTrainingName) ? source / kTrainingName : source;
  const auto table_in = [](const fs::path& folder, bool required) -> std::optional<Table> {
    const auto file = fs::is_directory(folder) ? metadata_in(folder, required) : std::nullopt;
    return file ? std::optional(Table{*file, folder}) : std::nullopt;
  };
  const bool has_classes = folders_in(train).names.size() > 1;
  const auto own = table_in(train, !has_classes);
  if (!own && !has_classes && table_in(source, true))
    fail("{}: has a table of all images: put one with the names of its images into each of train/ and val/",
         source.string());
  if (!own) return std::nullopt;
  std::optional<Table> test;
  std::string unread;
  for (const std::string_view name : kTestNames) {
    if (test || train == source || !fs::is_directory(source / name)) continue;
    test = table_in(source / name, true);
    if (!test) unread += fmt::format("; {} is not read: it has no table", (source / name).string());
  }
  SourcePlan plan = plan_tables(folders, *own, test);
  plan.remark = fmt::format("{}: has the labels{}", own->file.string(), unread);
  return plan;
}

SourcePlan plan_folder(const SourceFolders& folders) {
  std::optional<SourcePlan> plan;
  if (folders.labels.empty())
    plan = plan_metadata(folders);
  else
    plan = plan_tables(folders, {folders.labels, folders.source}, std::nullopt);
  if (!plan) plan = plan_class_folders(folders);
  plan->shuffle = true;
  return *plan;
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
    ".png; CLASS may have subfolders. With --labels, or with metadata.csv or metadata.jsonl (Hugging Face), a folder "
    "with images",
    has_images, plan_folder, read_folder_piece};

}  // namespace annulus
