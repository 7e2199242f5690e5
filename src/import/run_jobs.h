#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/import/work_queue.h"

namespace annulus {

// Reports a piece's progress. Returns false if the piece must be abandoned.
using Report = std::function<bool(std::size_t images, std::size_t bytes)>;

// Distributes the pieces that rank 0 lists (unfinished, out of `whole`) over all ranks; rank 0 shows the progress,
// naming `what` (the work) and `samples` ("images"). Returns false if a signal requested a stop. An Error on any rank
// stops all ranks and is thrown on all. Collective.
bool run_jobs(const World& world, const std::string& what, const std::string& samples,
              const std::vector<std::size_t>& pieces, std::size_t whole,
              const std::function<void(std::size_t piece, const Report& report)>& work);

}  // namespace annulus
