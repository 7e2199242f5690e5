#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/world/world.h"
#include "models/model.h"
#include "src/checkpoint/checkpoint_folder.h"
#include "src/step/optimizer.h"

namespace annulus {

// Between a running model and a checkpoint (src/checkpoint/checkpoint.h is the file).

// Throws Error naming `file` where the checkpoint has no parameter of this name and shape.
const NamedTensor& find(const Checkpoint& checkpoint, const std::filesystem::path& file, const std::string& name,
                        const Shape& shape);

// The parameters and the optimizer's state as they are now; the caller fills in the rest.
Checkpoint snapshot(Model& model, const Optimizer& optimizer);

// `averaged`: their moving average, which must be there. Throws Error naming `file` where the checkpoint is not one of
// this model.
void restore_parameters(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model,
                        bool averaged = false);

// Likewise of the optimizer's states. Throws Error naming `file` if they are of another optimizer.
void restore_states(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model,
                    Optimizer& optimizer);

// What a run needs to know of where it goes on.
struct Restored {
  Cursor cursor;
  std::uint64_t step = 0;
  BucketOptions buckets;  // this and the next as in Checkpoint
  std::uint64_t tuned_for_ranks = 0;
  std::optional<Score> score, best;            // of its step, and of all checkpoints that are there
  std::string summing;                         // on rank 0, and so is what follows
  std::vector<std::string> damaged;            // as in StoredCheckpoint
  std::optional<std::string> data_difference;  // of --data-changed, see first_difference()
};

// What it must have in common with the run that it goes on with.
struct RunKind {
  std::string model;
  std::uint64_t seed;
  std::string order;  // in the middle of an epoch, whose samples would else come twice or never
  std::vector<DataField> data;
  bool data_changed;  // other data is meant
};

// Every rank gets what is in rank 0's `stored`, the newest of `folder`; nothing where there is none. Throws Error where
// it was made by a run of another kind, or is not usable. Collective.
std::optional<Restored> restore(const World& world, const CheckpointFolder& folder,
                                const std::optional<StoredCheckpoint>& stored, const RunKind& kind, Model& model,
                                Optimizer& optimizer);

}  // namespace annulus
