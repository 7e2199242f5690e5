#pragma once

#include <filesystem>
#include <functional>

#include "collectives/world/world.h"
#include "src/train/run_record.h"

namespace annulus {

// Waits until no other job trains in the folder `run`, and then calls `claim` on rank 0, which claims the folder.
//
// While it waits, rank 0 has next_claim() of the folder: a job that is training ends when it has written a checkpoint
// and finds this claimed. The claim ends with the process, so a job that died while it waited stops nobody.
//
// Returns false if a signal ended the wait. Collective. Throws Error if another job waits already, or if the file
// system has no locks, without which nobody would notice the other job.
bool take_over(const World& world, const std::filesystem::path& run, RunRecord& record,
               const std::function<void()>& claim);

}  // namespace annulus
