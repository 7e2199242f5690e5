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

// Keeps an import's parts, the source's converted pieces, until all are complete. A part has two files: <name>.data,
// the stored images or tokens in sequence, and <name>.json, the index. The writer writes the index last, so a part with
// an index is complete.

struct SkippedSample {
  std::string name, reason;
};

struct PartIndex {
  std::vector<std::int64_t> labels;
  std::vector<std::uint64_t> sizes;  // bytes per image or document, as stored
  std::vector<SkippedSample> skipped;
  ImageStatistics statistics;
  std::string hash;  // over the data

  // Text.
  std::vector<std::uint64_t> text_bytes;                   // per document
  std::uint64_t invalid_documents = 0, invalid_bytes = 0;  // see WordSplitter

  std::uint64_t bytes() const;
};

std::filesystem::path part_data_file(const std::filesystem::path& part);
bool part_exists(const std::filesystem::path& part);
PartIndex read_part_index(const std::filesystem::path& part);

// Writes a part image by image, or document by document, in bounded memory. Leaves no files unless finish() is called.
class PartWriter {
 public:
  explicit PartWriter(const std::filesystem::path& part);

  void add(std::int64_t label, std::span<const std::uint8_t> image);
  // Add a part of a document, and end the document.
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
  std::uint64_t document_ = 0;  // bytes in the document's tokens so far
};

}  // namespace annulus
