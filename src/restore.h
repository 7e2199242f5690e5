#pragma once

#include <optional>
#include <string>

#include "collectives/world.h"
#include "models/model.h"
#include "src/checkpoint.h"
#include "src/optimizer.h"

namespace annulus {

// Between a running model and a checkpoint (src/checkpoint.h is the file).

// The parameters and the optimizer's state as they are now; the caller fills in the rest.
Checkpoint snapshot(Model& model, const Optimizer& optimizer);

// `averaged`: their moving average, which must be there. Throws Error naming `file` where the checkpoint is not one of
// this model.
void restore_parameters(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model,
                        bool averaged = false);

// What a run needs to know of where it goes on.
struct Restored {
  Cursor cursor;
  std::uint64_t step;
  BucketOptions buckets;  // this and the next as in Checkpoint
  std::uint64_t tuned_for_ranks;
  std::string summing;  // on rank 0
};

// What it must have in common with the run that it goes on with.
struct RunKind {
  std::string model;
  std::uint64_t seed;
  std::string order;  // in the middle of an epoch, whose samples would else come twice or never
};

// Rank 0 reads the file and every rank gets what is in it; nothing where there is no such file. Throws Error where it
// was made by a run of another kind. Collective.
std::optional<Restored> restore(const World& world, const std::filesystem::path& file, const RunKind& kind,
                                Model& model, Optimizer& optimizer);

}  // namespace annulus
