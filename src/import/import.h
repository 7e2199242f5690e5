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
  std::filesystem::path output;   // the data file to make (FORMAT.md)
  std::string format = "folder";  // name of a SourceFormat
  std::filesystem::path source;
  std::vector<std::filesystem::path> more_sources;  // of text: other files and folders
  std::string tokenizer;                            // of text: see make_tokenizer(); empty: bytes
  std::vector<std::string> classes;                 // names by label; empty: the source's, or "0", "1", ...
  std::string store = "encoded";                    // or pixels
  std::optional<ImageSize> size;                    // of stored pixels
  std::size_t channels = 0;                         // 0: 3
  std::vector<float> mean, stddev;                  // one for each channel; empty: computed from the training images
  std::string on_bad_sample = "skip";               // or fail
  double hold_out = 0;     // share of the training images for the split "validation"; 0: no such split
  std::size_t chunk = 0;   // samples per chunk, each with a checksum; 0: images are contiguous
  bool overwrite = false;  // replace files that are not Annulus's own
  std::size_t shards = 1;  // number of files; above 1, FILE-00000-of-00008.h5 and so on
};

using Log = std::function<void(const std::string& lines)>;  // without the final newline

// Creates one or several data files, of images or of text. All ranks process pieces of the source; every image is
// decoded once. The files are the same for any number of ranks. They appear only when all are complete; shards are then
// renamed one after the other. Finished pieces are kept in FILE.parts until then; if the import is interrupted or
// killed, the same call continues from there. Unusable images are skipped and listed in FILE.skipped.txt. On rank 0,
// `log` receives lines for the user.
//
// Memory: rank 0 holds the list of names of a folder's samples while it plans; when the files are assembled, every rank
// holds 16 bytes and rank 0 another 12 for each sample. Disk: twice the data.
//
// Returns 0, or kStoppedExitCode if a signal requested a stop. Collective. Throws Error on every rank.
int import_data(const World& world, const ImportOptions& options, const Log& log);

}  // namespace annulus
