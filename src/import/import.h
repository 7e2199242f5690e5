#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "src/data/image.h"

namespace annulus {

struct ImportOptions {
  std::filesystem::path output;  // the data file to make (FORMAT.md)
  std::string format = "idx";    // a SourceFormat's name
  std::filesystem::path source;
  std::vector<std::string> classes;     // names by label; empty: the source's, or "0", "1", ...
  std::string store = "usual";          // encoded, pixels, or usual: as they come
  std::optional<ImageSize> size;        // of stored pixels; none: as they come
  std::size_t channels = 0;             // 0: the source's, 3 for encoded images
  std::vector<float> mean, deviation;   // one for each channel; empty: what the training images have
  std::string on_bad_sample = "usual";  // fail, skip, or usual: skip where images are encoded
  std::size_t chunk = 0;                // samples in a chunk, which has a checksum; 0: images are contiguous
  bool overwrite = false;               // files that are there and are not ours
  std::size_t shards = 1;               // files to make: above 1, OUT-00000-of-00008.h5 and so on
};

using Tell = std::function<void(const std::string& lines)>;  // without the last line's end

// Makes a data file, or several, on all ranks together: each takes pieces of the source, and decodes every image once.
// The files are the same for any number of ranks. Each appears whole, and none before all are; but shards get their
// names one after the other. What is finished lies in OUTPUT.parts
// until then; interrupted or killed, the same call goes on from there. Images that cannot be used are skipped and
// listed in OUTPUT.skipped.txt. `tell` hears, on rank 0, what was found and made.
//
// Memory: rank 0 holds the list of names of a folder's samples while it plans; when the files are put together, every
// rank holds 16 bytes and rank 0 another 12 for each sample. Disk: twice the data.
//
// Returns 0, or kStoppedExitCode where a signal asked for a stop. Collective. Throws Error on every rank.
int import_data(const World& world, const ImportOptions& options, const Tell& tell);

}  // namespace annulus
