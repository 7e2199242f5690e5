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

// Throws Error naming `file` where the checkpoint is not one of this model.
void restore_parameters(const Checkpoint& checkpoint, const std::filesystem::path& file, Model& model);

// What a run needs to know of where it goes on.
struct Restored {
  Cursor cursor;
  std::uint64_t step;
  BucketOptions buckets;  // this and the next as in Checkpoint
  std::uint64_t tuned_for_ranks;
  std::string summing;  // on rank 0
};

// Rank 0 reads the file and every rank gets what is in it; nothing where there is no such file. Throws Error where it
// was not made by a run of this model and seed. Collective.
std::optional<Restored> restore(const World& world, const std::filesystem::path& file, const std::string& model_name,
                                std::uint64_t seed, Model& model, Optimizer& optimizer);

}  // namespace annulus
