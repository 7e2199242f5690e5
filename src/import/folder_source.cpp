#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "kernels/base/error.h"
#include "src/import/source.h"
#include "src/import/split_folders.h"
#include "src/io/atomic_file.h"
#include "src/io/file_io.h"
#include "src/io/hash.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceSamples = 1000;

struct ClassFolders {
  std::vector<std::string> names;    // sorted by their bytes, as Python and torchvision sort them
  std::vector<FoundImage> problems;  // link cycles etc.
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
  std::ranges::sort(found.problems, {}, &FoundImage::path);
  return found;
}

// Writes the names of a split's files, in pieces, as notes: the class's number, the path, and the reason if it is known
// to be unreadable, each followed by a zero byte.
class NoteWriter {
 public:
  NoteWriter(const fs::path& notes, std::string split, Hash& hash)
      : notes_(notes), split_{std::move(split), {}}, hash_(hash) {}

  void add(std::size_t label, const FoundImage& image) {
    text_ += std::to_string(label) + '\0' + image.path + '\0' + image.problem + '\0';
    add_facts(hash_, image.path);
    if (++samples_ == kPieceSamples) write();
  }

  SourceSplit finish() {
    if (samples_ > 0) write();
    return std::move(split_);
  }

 private:
  void write() {
    const std::string name = fmt::format("{}-{:06}.names", split_.name, split_.pieces.size());
    write_atomically(notes_ / name, std::as_bytes(std::span(text_)));
    split_.pieces.push_back(name);
    text_.clear();
    samples_ = 0;
  }

  const fs::path notes_;
  SourceSplit split_;
  Hash& hash_;
  std::string text_;
  std::size_t samples_ = 0;
};

SourceSplit plan_split(const std::string& name, const fs::path& folder, const std::vector<std::string>& classes,
                       const fs::path& notes, Hash& hash) {
  NoteWriter writer(notes, name, hash);
  const ClassFolders folders = folders_in(folder);
  for (const FoundImage& problem : folders.problems) writer.add(0, problem);
  for (const std::string& found : folders.names) {
    const auto label = std::ranges::find(classes, found);
    if (label == classes.end()) fail("{}: no such class among the training images", (folder / found).string());
    const std::vector<FoundImage> images = images_in(folder / found);
    if (images.empty()) fail("{}: has no images (.jpg, .jpeg, .png)", (folder / found).string());
    for (const FoundImage& image : images) writer.add(static_cast<std::size_t>(label - classes.begin()), image);
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

std::string next_word(std::string_view& text) {
  const std::size_t end = std::min(text.find('\0'), text.size());
  std::string word(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

void read_folder_piece(const SourceFolders& folders, const SourcePlan&, const SourceSplit& split, std::size_t piece,
                       const TakeSample& take) {
  std::vector<std::uint8_t> note, bytes;
  read_file(folders.notes / split.pieces[piece], kMostImageBytes, note);
  std::string_view left(reinterpret_cast<const char*>(note.data()), note.size());
  while (!left.empty()) {
    const std::size_t label = std::stoull(next_word(left));
    std::string path = next_word(left), problem = next_word(left);
    SourceSample sample{std::move(path), static_cast<std::int64_t>(label), {}, std::move(problem)};
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
