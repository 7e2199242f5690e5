#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/import/image_converter.h"
#include "src/io/atomic_file.h"
#include "src/io/hash.h"

namespace annulus {

// The parts of an import: the converted pieces of the source, kept until all are complete. A part is two files:
// <name>.data, the stored images or tokens one after the other, and <name>.json, the index. The index is written last,
// so a part that has one is complete.

struct SkippedSample {
  std::string name, reason;
};

struct PartIndex {
  std::vector<std::int64_t> labels;
  std::vector<std::uint64_t> sizes;  // bytes of each image or document, as stored
  std::vector<SkippedSample> skipped;
  ImageStatistics statistics;
  std::string hash;  // of the data

  // Text.
  std::vector<std::uint64_t> text_bytes;                   // of each document
  std::uint64_t invalid_documents = 0, invalid_bytes = 0;  // see WordSplitter

  std::uint64_t bytes() const;
};

std::filesystem::path part_data_file(const std::filesystem::path& part);
bool part_exists(const std::filesystem::path& part);
PartIndex read_part_index(const std::filesystem::path& part);

// Writes a part image by image, or document by document, in bounded memory. A part that is not finished leaves no
// files.
class PartWriter {
 public:
  explicit PartWriter(const std::filesystem::path& part);

  void add(std::int64_t label, std::span<const std::uint8_t> image);
  // A document, in parts, and its end.
  void add_tokens(std::span<const std::uint8_t> tokens);
  void end_document(std::uint64_t text_bytes, std::uint64_t invalid_bytes);
  void skip(std::string name, std::string reason);
  void finish(const ImageStatistics& statistics);

 private:
  void write_buffer();

  std::filesystem::path part_;
  AtomicFile data_;
  PartIndex index_;
  Hash hash_;
  std::vector<std::uint8_t> buffer_;
  std::uint64_t written_ = 0;
  std::uint64_t document_ = 0;  // bytes of the document's tokens so far
};

}  // namespace annulus
