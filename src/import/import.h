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
  std::string format = "auto";   // a SourceFormat's name, or auto: see recognized_format()
  std::filesystem::path source;
  std::vector<std::filesystem::path> more_sources;  // text only: other files and folders
  std::filesystem::path labels;                     // folder only: a table of labels; empty: the folders' names
  std::string label_key;                            // tar only: the field of KEY.json with the label
  std::string tokenizer;                            // text only, see make_tokenizer(); empty: bytes
  std::vector<std::string> classes;                 // names by label; empty: the source's, or "0", "1", ...
  std::string store = "encoded";                    // or pixels
  std::optional<ImageSize> size;                    // for stored pixels
  std::size_t channels = 0;                         // 0: 3
  std::vector<float> mean, stddev;                  // a value per channel; empty: computed from the training images
  std::string on_bad_sample = "skip";               // or fail
  double hold_out = 0;     // training images' share for the split "validation"; 0: no such split
  std::size_t chunk = 0;   // samples per chunk, each with a checksum; 0: images are contiguous
  bool overwrite = false;  // replace files that are not Annulus's own
  std::size_t shards = 1;  // number of files; above 1, FILE-00000-of-00008.h5 and so on
};

using Log = std::function<void(const std::string& lines)>;  // without the final newline

// Creates data files with images or text. All ranks process the source's pieces, and decode every image once. The files
// are the same for any number of ranks, and appear only when all are complete: shards are then renamed in turn.
// FILE.parts keeps finished pieces until then; after an interrupted or killed import, the same call continues from
// there. Skips unusable images and lists them in FILE.skipped.txt. On rank 0, `log` receives lines for the user.
//
// Memory: while planning, rank 0 holds the list of a folder's sample names; while assembling the files, every rank
// holds 16 bytes per sample, and rank 0 another 12. Disk: twice the data.
//
// Returns 0, or kStoppedExitCode if a signal requested a stop. Collective. Throws Error on every rank.
int import_data(const World& world, const ImportOptions& options, const Log& log);

}  // namespace annulus
