#pragma once

#include "kernels/cuda/ops/context.h"

// Kernels over flat arrays of multiples of 16 bytes. They do not depend on a tensor's layout: padding is zero and stays
// zero.
namespace annulus::cuda {

void add(DeviceView from, DeviceView to, DataType type, const Context& context);           // to += from
void follow(DeviceView from, DeviceView to, float share, const Context& context);          // Device::follow()
void exchange(DeviceView a, DeviceView b, const Context& context);                         // float32
void narrow(DeviceView weights, DeviceView copies, const Context& context);                // float32 to the value type
void widen(const void* from, DeviceView to, const float* factor, const Context& context);  // to = *factor from

}  // namespace annulus::cuda
