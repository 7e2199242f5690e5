#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <system_error>

#include "kernels/base/error.h"
#include "src/import/sample_notes.h"
#include "src/import/source.h"
#include "src/io/file_io.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPortion = std::size_t{1} << 20, kExamined = 8192;  // bytes

// Reads a file, and decompresses gzip.
class TextFile {
 public:
  explicit TextFile(const fs::path& path) : file_(gzdopen(open_to_read(path).release(), "rb")) {
    if (!file_) fail("cannot open: {}", std::generic_category().message(errno));
    gzbuffer(file_.get(), 1 << 18);
  }

  // Fills `bytes`, except at the file's end. Returns the number of bytes read.
  std::size_t read(std::span<std::uint8_t> bytes) {
    const int count = gzread(file_.get(), bytes.data(), static_cast<unsigned>(bytes.size()));
    int status = Z_OK;
    const char* message = gzerror(file_.get(), &status);
    if (count < 0 || status == Z_BUF_ERROR) fail("cannot read: {}", message);
    return static_cast<std::size_t>(count);
  }

  bool is_compressed() { return gzdirect(file_.get()) == 0; }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose_r(file); }
  };
  std::unique_ptr<gzFile_s, Close> file_;
};

// Reads a document in parts. Throws Error before the first part if the file is no document.
class Document {
 public:
  explicit Document(const fs::path& path) : file_(path), now_(kPortion), next_(kPortion) {
    if (file_.is_compressed()) expect_whole(path);
    read_next();
    if (next_.empty()) fail("{}", kEmptyDocument);
    const auto examined = std::span(next_).first(std::min(kExamined, next_.size()));
    if (std::ranges::find(examined, 0) != examined.end()) fail("{}", kBinaryDocument);
  }

  // Returns the next part. `ends`: whether this part is the last.
  std::span<const std::uint8_t> next(bool& ends) {
    std::swap(now_, next_);
    read_next();
    ends = next_.empty();
    return now_;
  }

 private:
  // Finds damage while the document can still be skipped.
  void expect_whole(const fs::path& path) {
    TextFile tried(path);
    while (tried.read(now_) == now_.size()) {
    }
  }

  void read_next() {
    next_.resize(kPortion);
    next_.resize(file_.read(next_));
  }

  TextFile file_;
  std::vector<std::uint8_t> now_, next_;
};

bool is_any_name(const fs::path&) {
  return true;
}

// Adds all files at or below a path.
void add_files(NoteWriter& writer, const fs::path& path) {
  std::error_code none;
  if (!fs::is_directory(path)) return writer.add(0, {path.string(), {}}, fs::file_size(path, none));
  for (const FoundFile& file : files_in(path, is_any_name)) {
    const std::uintmax_t bytes = fs::file_size(file.path, none);
    writer.add(0, file, none ? 0 : bytes);
  }
}

SourceSplit finish(NoteWriter writer, const fs::path& source) {
  SourceSplit split = writer.finish();
  if (split.pieces.empty()) fail("{}: has no files", source.string());
  return split;
}

SourcePlan plan_text(const SourceFolders& folders) {
  SourcePlan plan;
  plan.is_text = true;
  Hash hash;
  if (folders.more.empty() && fs::is_directory(folders.source / kTrainingName)) {
    const auto add_split = [&](const char* name, const fs::path& folder) {
      NoteWriter writer(folders.notes, name, hash);
      add_files(writer, folder);
      plan.splits.push_back(finish(std::move(writer), folder));
    };
    add_split("train", folders.source / kTrainingName);
    const auto test = std::ranges::find_if(
        kTestNames, [&](std::string_view name) { return fs::is_directory(folders.source / name); });
    if (test != std::end(kTestNames)) add_split("test", folders.source / *test);
  } else {
    NoteWriter writer(folders.notes, "train", hash);
    add_files(writer, folders.source);
    for (const fs::path& path : folders.more) add_files(writer, path);
    plan.splits.push_back(finish(std::move(writer), folders.source));
  }
  plan.fingerprint = hash.text();
  return plan;
}

void read_text_piece(const SourceFolders& folders, const SourcePlan&, const SourceSplit& split, std::size_t piece,
                     const TakeSample& take) {
  for (auto& [label, file] : read_notes(folders.notes / split.pieces[piece])) {
    SourceSample sample{std::move(file.path), 0, {}, std::move(file.problem)};
    std::optional<Document> document;
    try {
      if (sample.problem.empty()) document.emplace(sample.name);
    } catch (const std::exception& error) {
      sample.problem = error.what();
    }
    do {
      if (document) sample.bytes = document->next(sample.ends);
      if (!take(sample)) return;
    } while (!sample.ends);
  }
}

bool is_text_name(const fs::path& path) {
  const std::string name = path.filename().string();
  return std::ranges::any_of(std::array{".txt", ".txt.gz", ".md", ".text"},
                             [&name](const char* ending) { return name.ends_with(ending); });
}

bool has_text(const fs::path& source) {
  return fs::is_directory(source) ? any_file_in(source, is_text_name) : is_text_name(source);
}

}  // namespace

const SourceFormat kTextSource{
    "text",
    "text files, and folders of them with subfolders, also .gz; each is a document. A folder may have train/ and test/ "
    "(or val/, validation/)",
    has_text, plan_text, read_text_piece};

}  // namespace annulus
