#pragma once

#include <filesystem>

#include "collectives/world/world.h"
#include "src/import/import_job.h"

namespace annulus {

// If a source names its classes only within its training pieces, all ranks search these, and the names found are added
// to `job`. They are also stored beside the parts, so that no piece is searched twice. Returns false if a signal
// requested a stop. Collective. Throws Error on every rank.
bool find_classes(const World& world, ImportJob& job, const std::filesystem::path& parts);

// Whether some pieces have been searched.
bool has_class_names(const ImportJob& job, const std::filesystem::path& parts);

}  // namespace annulus
