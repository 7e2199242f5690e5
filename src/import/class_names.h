#pragma once

#include <filesystem>

#include "collectives/world/world.h"
#include "src/import/import_job.h"

namespace annulus {

// Searches the training pieces, on all ranks, if the source names classes only there. Adds the names to `job`, and
// stores them beside the parts, so that no piece is searched twice. Returns false if a signal requested a stop.
// Collective. Throws Error on every rank.
bool find_classes(const World& world, ImportJob& job, const std::filesystem::path& parts);

// Returns whether some pieces have been searched.
bool has_class_names(const ImportJob& job, const std::filesystem::path& parts);

}  // namespace annulus
