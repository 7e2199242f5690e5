#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/checkpoint/checkpoint_folder.h"

namespace annulus {

// Tools for `annulus checkpoint`, which run in a single process. Places are as in find_checkpoint(). All throw Error.

// Tensors are named "parameters/conv1.weight", "velocity/conv1.weight", "average/conv1.weight".
struct TensorDifference {
  std::string name;
  double largest = 0;    // largest |a - b|
  double relative = 0;   // norm(a - b) / norm(a)
  std::string remark{};  // if they cannot be subtracted: "only in the first", "shapes 3 and 4"
};

// A checkpoint in memory, and its file.
struct LoadedCheckpoint {
  std::filesystem::path file;
  Checkpoint checkpoint;
};

// Returns the tensors that differ in a bit, in the order in which they are stored.
std::vector<TensorDifference> differences(const Checkpoint& a, const Checkpoint& b);

// Returns the mean over several checkpoints: weights, batch norm's statistics, and averaged weights if all have them.
// It is for evaluation and prediction only: it has no optimizer states, so no run can resume from it. Throws Error
// naming the difference if they belong to different models.
Checkpoint average(const std::vector<LoadedCheckpoint>& checkpoints);

// Prints the checkpoint's attributes, and its tensors with shapes and norms. Writes them also to `json` if not empty.
void show_checkpoint(const std::filesystem::path& place, const std::filesystem::path& json);

// Prints the differences. Returns whether there are any.
bool compare_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

// Writes the mean of the checkpoints at `places` to `file`. Throws Error if `file` is among them, or exists without
// `overwrite`.
void average_checkpoints(const std::filesystem::path& file, const std::vector<std::filesystem::path>& places,
                         bool overwrite);

}  // namespace annulus
