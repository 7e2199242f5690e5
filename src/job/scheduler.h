#pragma once

#include <optional>
#include <string>

namespace annulus {

// Returns an error, with a remedy, if the batch system started several tasks of this program but MPI sees a world of
// one: every task would take itself for rank 0 and train alone.
std::optional<std::string> scheduler_complaint(int world_size);

}  // namespace annulus
