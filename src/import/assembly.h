#pragma once

#include <filesystem>
#include <vector>

#include "collectives/world/world.h"
#include "src/import/collection.h"
#include "src/import/import_job.h"
#include "src/import/preallocate.h"

namespace annulus {

// Assembles all parts into `files`, a data set's shards or only file: rank 0 preallocates the files, all ranks copy
// images to their positions, and finally rank 0 renames file after file. Returns false if a signal requested a stop;
// then, and on an Error before the renaming, there are no new files. Uses `collection` and `header` on rank 0 only.
// Collective.
bool assemble(const World& world, const ImportJob& job, const std::filesystem::path& parts, Collection collection,
              const DataFileHeader& header, const std::vector<std::filesystem::path>& files);

}  // namespace annulus
