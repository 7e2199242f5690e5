#pragma once

#include "kernels/base/shown_image.h"
#include "kernels/cuda/ops/loops/context.h"

namespace annulus::cuda {

// See Device::show_images().
void show_images(DeviceView set, DeviceView shown, const PixelShape& shape, DeviceView to, const Context& context);

}  // namespace annulus::cuda
