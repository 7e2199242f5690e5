#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/checkpoint.h"

namespace annulus {

// A checkpoint that was found in a folder.
struct StoredCheckpoint {
  CheckpointFile file;
  std::vector<std::string> damaged;  // newer checkpoints that cannot be read: a line each, with the reason
};

// A run's checkpoints, in the run's output folder:
//
//   checkpoints/step-000001200.h5   the state after 1200 steps: the most recent checkpoints, and the best
//   checkpoint.h5                   a symbolic link to the newest
//   best.h5                         a symbolic link to the checkpoint with the best score, the first if equal
//
// If a writer is killed at any instant, the newest complete checkpoint is still found. The links are for users: the
// program finds the newest and the best by the files themselves. REQUIRES: one writer at a time.
class CheckpointFolder {
 public:
  // Called when a stage of writing is complete: "written" (under a temporary name), "renamed", "linked" (before old
  // checkpoints are removed).
  using Reached = std::function<void(std::uint64_t step, std::string_view stage)>;

  // `keep`: how many recent checkpoints to keep, at least 1. `best_by`: how the best is chosen.
  CheckpointFolder(
      std::filesystem::path run, std::size_t keep, Reached reached = [](std::uint64_t, std::string_view) {},
      Measure best_by = Measure::accuracy);

  struct Numbered {
    std::uint64_t step;
    std::filesystem::path file;
  };
  std::vector<Numbered> list() const;  // the checkpoints in the subfolder, readable or not, the newest first

  std::filesystem::path file_of(std::uint64_t step) const;

  bool empty() const;  // no run has written here

  // Returns the newest readable checkpoint, or nothing if the folder has no checkpoints. Throws Error if none is
  // intact, or if the system refuses to open or read a newer checkpoint, which may be intact, and UnknownVersion if
  // another version of the program wrote the newest.
  std::optional<StoredCheckpoint> newest() const;

  // Returns the newest checkpoint that can be read and that expect_usable() accepts, if any. Reads all newer ones.
  std::optional<std::filesystem::path> newest_usable() const;

  std::optional<Score> best() const;        // over all checkpoints in the folder
  std::filesystem::path best_file() const;  // throws Error if there is none

  // Writes a checkpoint, updates the links and removes checkpoints that need not be kept, except any that cannot be
  // opened. Throws Error and leaves the earlier checkpoints unchanged.
  void write(const CheckpointHeader& header, const ArraySource& arrays) const;

 private:
  struct Scored {
    Numbered where;
    Score score;
  };
  std::filesystem::path subfolder() const { return run_ / "checkpoints"; }
  std::filesystem::path link(const std::string& name) const { return run_ / name; }
  std::optional<Scored> best_of(const std::vector<Numbered>& files) const;
  void remove_unfinished() const;
  void point(const std::string& link, const std::filesystem::path& file) const;

  std::filesystem::path run_;
  std::size_t keep_;
  Reached reached_;
  Measure best_by_;
};

// `place`: a checkpoint file, or a run's folder, for the newest checkpoint in it. Throws Error if there is none.
StoredCheckpoint find_checkpoint(const std::filesystem::path& place);

}  // namespace annulus
