#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/import/source.h"
#include "src/import/split_folders.h"
#include "src/io/hash.h"

namespace annulus {

// Store a split's files, which plan() finds and read() reads: a piece is a note's name, and a note lists files.

class NoteWriter {
 public:
  // Adds the files' facts to `hash`.
  NoteWriter(const std::filesystem::path& notes, std::string split, Hash& hash)
      : notes_(notes), split_{std::move(split), {}}, hash_(hash) {}

  // `bytes`: the file's size; a piece with large files has about kPieceBytes.
  void add(std::size_t label, const FoundFile& file, std::uint64_t bytes = 0);
  SourceSplit finish();

 private:
  static constexpr std::size_t kPieceSamples = 1000;
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;

  void write();

  const std::filesystem::path notes_;
  SourceSplit split_;
  Hash& hash_;
  std::string text_;  // a note: label, path and problem, each followed by a zero byte
  std::size_t samples_ = 0;
  std::uint64_t bytes_ = 0;
};

struct NotedFile {
  std::size_t label;
  FoundFile file;
};

std::vector<NotedFile> read_notes(const std::filesystem::path& note);

}  // namespace annulus
