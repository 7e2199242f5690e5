#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "collectives/world/world.h"
#include "kernels/device.h"
#include "models/graph/graph.h"
#include "src/job/open_device.h"

namespace annulus {

// Returns the device on which a network's forward and backward passes take less time: `tuned`, whose plans were
// measured separately, or another without a tuning file. The times are kept in the tuning file, so that a resumed run
// uses the same plans. Prints them on rank 0. Returns `tuned` if it is a CPU, or if there is no tuning file. `network`
// names it in the file. Collective; the same choice on every rank.
std::unique_ptr<Device> keep_faster_plans(const World& world, const DeviceOptions& options,
                                          std::unique_ptr<Device> tuned, const Graph& graph, const std::string& network,
                                          std::size_t batch);

}  // namespace annulus
