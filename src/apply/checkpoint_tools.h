#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/checkpoint/checkpoint_folder.h"

namespace annulus {

// `annulus checkpoint`: for people, on one process. Places are those of find_checkpoint(). All throw Error.

// What a tensor of a checkpoint is called: "parameters/conv1.weight", "velocity/conv1.weight", "average/conv1.weight".
struct TensorDifference {
  std::string name;
  double largest = 0;    // |a - b|
  double relative = 0;   // norm of a - b, of a's norm
  std::string remark{};  // where there is nothing to subtract: "only in the first", "shapes 3 and 4"
};

// Those whose bits differ, in the order in which they are stored.
std::vector<TensorDifference> differences(const Checkpoint& a, const Checkpoint& b);

// The mean of several: of the weights, of batch norm's statistics, and of the averaged weights where all have them.
// It is for evaluation and prediction: what an optimizer remembers is left out, so no run can go on from it. Throws
// Error where they are not of one model, naming what differs.
Checkpoint average(const std::vector<StoredCheckpoint>& checkpoints);

// What the checkpoint is, and its tensors with shapes and norms; also to `json`, if that is not empty.
void show_checkpoint(const std::filesystem::path& place, const std::filesystem::path& json);

// Prints the differences. Returns whether there are any.
bool compare_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

// Writes the mean of those at `places` to `file`, which must not be there unless `overwrite`, nor be one of them.
void average_checkpoints(const std::filesystem::path& file, const std::vector<std::filesystem::path>& places,
                         bool overwrite);

}  // namespace annulus
