#pragma once

#include <filesystem>
#include <vector>

#include "collectives/world/world.h"
#include "src/import/collection.h"
#include "src/import/import_job.h"
#include "src/import/preallocate.h"

namespace annulus {

// Puts all parts together into these files, the shards of a data set, or its only one: rank 0 makes them with room for
// everything, all ranks copy images to where they belong, and at last the files get their names, one after the
// other. Returns false where a signal asked for a stop; then, and on an Error before that last step, there are no new
// files. `collection` and `header` are rank 0's.
// Collective.
bool assemble(const World& world, const ImportJob& job, const std::filesystem::path& parts, Collection collection,
              const DataFileHeader& header, const std::vector<std::filesystem::path>& files);

}  // namespace annulus
