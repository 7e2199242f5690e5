#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "models/network/model.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/step/optimizer.h"

namespace annulus {

// Copies state between a running model and a checkpoint (see src/checkpoint/checkpoint.h).

// Throws Error naming the file if it has no parameter with this name and shape.
void expect_parameter(const CheckpointFile& file, const std::string& name, const Shape& shape);

// Returns the current parameters; the caller adds what the optimizer keeps.
std::vector<NamedTensor> snapshot(Model& model);

// Adds the optimizer's next state, an arena with the gradients' layout.
void add_state(Checkpoint& checkpoint, Model& model, DeviceView state);
void set_average(Checkpoint& checkpoint, Model& model, DeviceView average);          // in that layout
void set_outer_velocity(Checkpoint& checkpoint, Model& model, DeviceView velocity);  // in that layout

// Returns a checkpoint's arrays with the current parameters, their average, and the optimizer's states, read from the
// model one by one. REQUIRES: the optimizer is not sharded(); everything outlives the source.
ArraySource arrays_of(Model& model, const Optimizer& optimizer);

// `averaged`: restores the moving average instead. REQUIRES: the checkpoint has an average. Throws Error naming the
// file if the checkpoint does not match the model.
void restore_parameters(const CheckpointFile& file, Model& model, bool averaged = false);

// Copies rank 0's weights to every rank's. Collective.
void broadcast_weights(const World& world, Model& model);

// Restores the optimizer's states, not the average, and overwrites gradients. Throws Error naming the file if they
// belong to another optimizer.
void restore_states(const CheckpointFile& file, Model& model, Optimizer& optimizer);

// A run's properties that a checkpoint must match to be resumed.
struct RunKind {
  std::string model, onnx, loss;  // as in Checkpoint
  std::uint64_t seed;
  LabelKind labels;
  std::string order;  // compared within an epoch: otherwise samples would be repeated or missed
  std::vector<DataField> data;
  bool data_changed;            // accept different data
  std::size_t shards, threads;  // see RunState
};

// Where a run resumes.
struct Resumption {
  RunState state;
  std::vector<std::string> cuts;  // see CheckpointHeader
  // On rank 0:
  std::optional<StoredCheckpoint> stored;
  std::optional<std::string> data_difference;  // accepted by --data-changed, see first_difference()
};

// Reads the newest checkpoint in `folder` on rank 0 and broadcasts its state. Returns nothing if there is none. Throws
// Error if it belongs to another kind of run or is not usable. Collective.
std::optional<Resumption> find_resumption(const World& world, const CheckpointFolder& folder, const RunKind& kind);

// Restores the checkpoint's tensors on every rank, and overwrites gradients. Collective. Throws Error if they do not
// match the model or the optimizer. `outer_velocity`: see KeptState.
void restore(const World& world, const Resumption& resumption, Model& model, Optimizer& optimizer,
             DeviceView outer_velocity);

// Replaces the weights by the best checkpoint's evaluated weights: the moving average if it has one. Returns the
// checkpoint's step. Collective. Throws Error on rank 0 if there is none.
std::uint64_t restore_best(const World& world, const CheckpointFolder& folder, Model& model);

}  // namespace annulus
