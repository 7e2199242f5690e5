#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/import/work_queue.h"

namespace annulus {

// What a piece of work tells while it goes on. False: leave it.
using Report = std::function<bool(std::size_t images, std::size_t bytes)>;

// All ranks do the pieces that rank 0 lists, `whole` pieces less those that are done already, and rank 0 shows how far
// they are. Returns false where a signal asked for a stop. An Error on any rank stops the others, and is thrown on all.
// Collective.
bool run_jobs(const World& world, const std::string& what, const std::vector<std::size_t>& pieces, std::size_t whole,
              const std::function<void(std::size_t piece, const Report& report)>& work);

}  // namespace annulus
