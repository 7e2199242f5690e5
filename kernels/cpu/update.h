#pragma once

#include <memory>
#include <vector>

#include "kernels/update.h"

namespace annulus::cpu {

// See Device::plan.
std::unique_ptr<Update> plan_update(const UpdateRule& rule, const UpdateArenas& arenas,
                                    const std::vector<UpdateSegment>& segments);

}  // namespace annulus::cpu
