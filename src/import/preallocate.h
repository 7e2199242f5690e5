#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/import/image_converter.h"
#include "src/io/atomic_file.h"

namespace annulus {

// Describes a data file with text.
struct TextHeader {
  std::string name, tokenizer;  // the tokenizer's name and serialized form
  std::size_t vocabulary = 0, token_bytes = 0;
};

// Holds a data file's parts (FORMAT.md) other than the samples.
struct DataFileHeader {
  std::vector<std::string> classes;
  std::vector<float> mean, stddev;
  std::size_t chunk = 0;  // approximate samples per image chunk; 0: contiguous
  bool is_text = false;
  TextHeader text{};  // if it is text
};

// Locates a split's images in a file: in chunks, or in a single chunk if contiguous.
struct ImagesSpace {
  std::uint64_t chunk_bytes = 0;
  std::vector<std::uint64_t> chunks;  // where each begins
};

struct SplitSpace {
  std::string name;
  std::size_t samples = 0;       // 0: the file has no such group
  std::uint64_t bytes = 0;       // in all images or tokens
  std::uint64_t text_bytes = 0;  // before tokenization

  // Positions in the file.
  std::uint64_t labels_begin = 0;   // int32
  std::uint64_t offsets_begin = 0;  // uint64, for encoded images and text
  ImagesSpace images;
};

// Creates the file under a temporary name, allocates all space on the disk, and fills in the positions in `splits`.
// Throws Error if there is not enough space.
AtomicFile preallocate(const std::filesystem::path& file, const DataFileHeader& header, const Storage& storage,
                       std::vector<SplitSpace>& splits);

// Adds checksums for a file's chunks. REQUIRES: the images are in place. `go_on` receives the progress and may return
// false to stop. Throws Error.
void add_checksums(const std::filesystem::path& file, const std::function<bool(std::size_t bytes)>& go_on);

}  // namespace annulus
