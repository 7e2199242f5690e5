#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "src/io/hash.h"

namespace annulus {

// The importer's interface to other data set formats. A source consists of pieces, each read sequentially by a single
// rank. To add a format, add a file <format>_source.cpp, and a line here and in source.cpp.

// Holds a sample, whose bytes the reader owns, valid until the next sample.
struct SourceSample {
  std::string name;                     // the origin, for messages
  std::int64_t label = 0;               // the class
  std::span<const std::uint8_t> bytes;  // an encoded image, or part of a document
  std::string problem;                  // why the sample is unusable, if the source knows; else empty
  bool ends = true;                     // text only: false if the same document continues
};

struct SourceSplit {
  std::string name;                 // "train" or "test"
  std::vector<std::string> pieces;  // names, defined by the format
};

// Describes the source's content. A single rank makes the plan, quickly and with little memory: without sample names.
struct SourcePlan {
  std::vector<std::string> classes;  // names by label; none: labels are numbers that determine the number of classes
  bool classes_in_pieces = false;    // names must be found by SourceFormat::find_classes
  std::vector<SourceSplit> splits;   // "train", then "test" if the source has it
  std::string variant;               // defined by the format
  bool shuffle = false;              // whether training samples may be sorted by class
  bool is_text = false;              // documents, not images
  std::string fingerprint;           // changes when the source does
  std::string remark;                // a line for the user; else empty

  const char* samples() const { return is_text ? "documents" : "images"; }
};

// Where a source and labels are.
struct SourceFolders {
  std::filesystem::path source;
  std::filesystem::path notes;                // a folder that all ranks see; plan() stores data for read() there
  std::vector<std::filesystem::path> more{};  // text only: the source's other files and folders
  std::filesystem::path labels{};             // folder only: a table with image labels; else empty
  std::string label_key{};                    // tar only: the KEY.json field with the label; empty: KEY.cls, or a
                                              // field with a name such as "label"
};

// Return false to stop reading the piece.
using TakeSample = std::function<bool(const SourceSample&)>;
using PassSample = std::function<bool(std::size_t bytes)>;

struct SourceFormat {
  std::string name;
  std::string description;
  bool (*recognizes)(const std::filesystem::path& source);  // by file names, without reading
  // Both throw Error for problems with the whole source; SourceSample::problem reports a sample's.
  SourcePlan (*plan)(const SourceFolders& folders);
  void (*read)(const SourceFolders& folders, const SourcePlan& plan, const SourceSplit& split, std::size_t piece,
               const TakeSample& take);
  // Returns a training piece's sorted class names. For formats whose plans may not know the classes; finding them
  // requires reading all training pieces.
  std::vector<std::string> (*find_classes)(const SourceFolders& folders, const SourcePlan& plan, std::size_t piece,
                                           const PassSample& pass) = nullptr;
};

extern const SourceFormat kFolderSource, kTarSource, kTextSource;

std::span<const SourceFormat* const> source_formats();
const SourceFormat& source_format(const std::string& name);  // throws Error naming the known formats

// Returns a source's format, by file names. Throws Error if none recognizes it; arrays are
// imported by a script, which the error names.
const SourceFormat& recognized_format(const std::filesystem::path& source);

// Calls `found` with the files in a folder and its subfolders, in any order, until it returns true. Returns whether it
// did.
bool any_file_in(const std::filesystem::path& folder, const std::function<bool(const std::filesystem::path&)>& found);

// Why a document is skipped.
constexpr const char *kEmptyDocument = "empty", *kBinaryDocument = "binary: has a zero byte near its beginning";

// A larger image is treated as an error.
constexpr std::size_t kMostImageBytes = std::size_t{1} << 28;

// Adds a file's name, size and modification time to a hash, also if it is a dangling link.
void add_facts(Hash& hash, const std::filesystem::path& file);
std::string fingerprint_of(std::span<const std::filesystem::path> files);

}  // namespace annulus
