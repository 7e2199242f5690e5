#pragma once

#include <filesystem>

#include "collectives/world/world.h"
#include "src/import/import_job.h"

namespace annulus {

// Where a source names its classes only within its training pieces, all ranks look for them there, and `job` gets what
// they find. It lies beside the parts, too, so that no piece is looked through twice. Returns false where a signal
// asked for a stop. Collective. Throws Error on every rank.
bool find_classes(const World& world, ImportJob& job, const std::filesystem::path& parts);

// Whether some pieces have been looked through.
bool has_class_names(const ImportJob& job, const std::filesystem::path& parts);

}  // namespace annulus
