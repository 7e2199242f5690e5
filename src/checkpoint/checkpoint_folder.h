#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/checkpoint.h"

namespace annulus {

// A checkpoint and where it was found.
struct StoredCheckpoint {
  std::filesystem::path file;
  Checkpoint checkpoint;
  std::vector<std::string> damaged;  // newer ones that cannot be read, and why: a line for each
};

// The checkpoints of a run, in the folder that the run writes to:
//
//   checkpoints/step-000001200.h5   as it was after so many steps: the last few, and the best
//   checkpoint.h5                   a symbolic link to the newest
//   best.h5                         likewise to that whose evaluation found the most correct, the first of equals
//
// Whatever instant a writer is killed at, the newest that is whole is found. The links are for people: what is newest
// and what is best, the files themselves say. One writer at a time.
class CheckpointFolder {
 public:
  // How far the writing of one has come: "written" but for its name, "renamed", "linked" but for what is to be removed.
  using Reached = std::function<void(std::uint64_t step, std::string_view stage)>;

  // `keep`: how many of the last stay, 1 or more. `reached` is called while one is written.
  CheckpointFolder(
      std::filesystem::path run, std::size_t keep, Reached reached = [](std::uint64_t, std::string_view) {});

  bool empty() const;  // no run has written here

  // Nothing where there are none. Throws Error where none of those that are there can be read, and NewerCheckpoint
  // where the newest is of a newer program.
  std::optional<StoredCheckpoint> newest() const;

  // The newest that can be read and that expect_usable() accepts; none if there is none. Reads all that are newer.
  std::optional<std::filesystem::path> newest_usable() const;

  std::optional<Score> best() const;  // of those that are there

  // Writes it, makes it the newest, and the best if it is, and removes those that need not be kept. Throws Error with
  // the earlier ones as they were.
  void write(const Checkpoint& checkpoint) const;

 private:
  struct Numbered {
    std::uint64_t step;
    std::filesystem::path file;
  };
  struct Scored {
    Numbered where;
    Score score;
  };
  std::filesystem::path subfolder() const { return run_ / "checkpoints"; }
  std::filesystem::path link(const std::string& name) const { return run_ / name; }
  std::vector<Numbered> list() const;  // the newest first
  static std::optional<Scored> best_of(const std::vector<Numbered>& files);
  void remove_unfinished() const;
  void point(const std::string& link, const std::filesystem::path& file) const;

  std::filesystem::path run_;
  std::size_t keep_;
  Reached reached_;
};

// `place`: a checkpoint's file, or the folder of a run, of which the newest is meant. Throws Error where there is none.
StoredCheckpoint find_checkpoint(const std::filesystem::path& place);

}  // namespace annulus
