#pragma once

#include "kernels/cuda/ops/loops/context.h"

namespace annulus::cuda {

// See Device::add_hash().
void add_hash(DeviceView from, DeviceView to, const Context& context);

}  // namespace annulus::cuda
