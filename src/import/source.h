#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/data/image.h"
#include "src/io/hash.h"

namespace annulus {

// A data set in another format, as the importer sees it: pieces of work, each of which one rank reads from its begin to
// its end. To add a format: a file <format>_source.cpp, a line here and one in source.cpp.

// One sample. What it refers to is the reader's, until the next one.
struct SourceSample {
  std::string name;  // for messages: where it comes from
  std::int64_t label = 0;
  std::span<const std::uint8_t> bytes;  // an encoded image, or pixels: height x width x channels
  std::string problem;                  // why it cannot be used, where the source knows; else empty
};

// What pixels come as, all alike.
struct PixelShape {
  ImageSize size;
  std::size_t channels = 0;

  std::size_t bytes() const { return size.height * size.width * channels; }
};

struct SourceSplit {
  std::string name;                 // "train" or "test"
  std::vector<std::string> pieces;  // what each is called is the format's matter
};

// What is to be read. Made by one rank, quickly, and small: no names of samples.
struct SourcePlan {
  std::vector<std::string> classes;  // names by label; none: labels are numbers, and as many classes as they need
  bool classes_in_pieces = false;    // or they are still to be found, by SourceFormat::find_classes
  std::vector<SourceSplit> splits;   // "train", then "test" if there is one
  std::optional<PixelShape> pixels;  // none: encoded images
  std::string variant;               // the format's matter
  bool shuffle = false;              // whether training samples may lie class by class
  std::string fingerprint;           // changes when the source does
};

struct SourceFolders {
  std::filesystem::path source;
  std::filesystem::path notes;  // a folder that all ranks see: what plan() leaves there for read()
};

// False: no more of this piece.
using TakeSample = std::function<bool(const SourceSample&)>;
using PassSample = std::function<bool(std::size_t bytes)>;

struct SourceFormat {
  std::string name;
  std::string description;
  // Both throw Error naming what is wrong with the source as a whole; of a sample, SourceSample::problem tells.
  SourcePlan (*plan)(const SourceFolders& folders);
  void (*read)(const SourceFolders& folders, const SourcePlan& plan, const SourceSplit& split, std::size_t piece,
               const TakeSample& take);
  // The classes that a training piece names, sorted; where a format's plans leave that to be found, which takes reading
  // all pieces.
  std::vector<std::string> (*find_classes)(const SourceFolders& folders, const SourceSplit& split, std::size_t piece,
                                           const PassSample& pass) = nullptr;
};

extern const SourceFormat kIdxSource, kCifarSource, kNpySource, kFolderSource, kTarSource;

std::span<const SourceFormat* const> source_formats();
const SourceFormat& source_format(const std::string& name);  // throws Error naming those that there are

// An image of more bytes than this is taken for a mistake.
constexpr std::size_t kMostImageBytes = std::size_t{1} << 28;

// Throws Error naming the file where pixels have a shape that no image has.
PixelShape checked_shape(const std::filesystem::path& file, std::size_t height, std::size_t width,
                         std::size_t channels);

// A file's name, size and time of change, also where it is a link to nothing; and a fingerprint of many.
void add_facts(Hash& hash, const std::filesystem::path& file);
std::string fingerprint_of(std::span<const std::filesystem::path> files);

}  // namespace annulus
