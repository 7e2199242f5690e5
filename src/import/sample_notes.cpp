#include "src/import/sample_notes.h"

#include <algorithm>
#include <utility>

#include "src/io/atomic_file.h"
#include "src/io/file_io.h"

namespace annulus {
namespace {

std::string next_word(std::string_view& text) {
  const std::size_t end = std::min(text.find('\0'), text.size());
  std::string word(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

}  // namespace

void NoteWriter::add(std::size_t label, const FoundFile& file, std::uint64_t bytes) {
  text_ += std::to_string(label) + '\0' + file.path + '\0' + file.problem + '\0';
  add_facts(hash_, file.path);
  bytes_ += bytes;
  if (++samples_ == kPieceSamples || bytes_ >= kPieceBytes) write();
}

SourceSplit NoteWriter::finish() {
  if (samples_ > 0) write();
  return std::move(split_);
}

void NoteWriter::write() {
  const std::string name = fmt::format("{}-{:06}.names", split_.name, split_.pieces.size());
  write_atomically(notes_ / name, std::as_bytes(std::span(text_)));
  split_.pieces.push_back(name);
  text_.clear();
  samples_ = 0;
  bytes_ = 0;
}

std::vector<NotedFile> read_notes(const std::filesystem::path& note) {
  std::vector<std::uint8_t> bytes;
  read_file(note, kMostImageBytes, bytes);
  std::string_view left(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<NotedFile> files;
  while (!left.empty()) {
    const std::size_t label = std::stoull(next_word(left));
    std::string path = next_word(left), problem = next_word(left);
    files.push_back({label, {std::move(path), std::move(problem)}});
  }
  return files;
}

}  // namespace annulus
