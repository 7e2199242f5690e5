#pragma once

#include "kernels/cuda/ops/loops/context.h"

// Element-wise kernels over arrays in multiples of 16 bytes. They do not depend on a tensor's layout: padding is zero
// and stays zero.
namespace annulus::cuda {

void add(DeviceView from, DeviceView to, DataType type, const Context& context);  // to += from
// to[index[i]] += from[i], see Device::add_rows().
void add_rows(DeviceView from, DataType type, DeviceView index, std::size_t width, DeviceView to,
              const Context& context);
void scale(DeviceView from, float factor, DeviceView to, const Context& context);       // to = factor from, float32
void add_scaled(DeviceView from, float factor, DeviceView to, const Context& context);  // to += factor from, float32
// values += share (goal - values), float32. Does nothing in a step without updates (see LossScaling).
void move_towards(DeviceView goal, DeviceView values, float share, const Context& context);
void swap(DeviceView a, DeviceView b, const Context& context);                             // float32
void cast_params(DeviceView weights, DeviceView copies, const Context& context);           // float32 to the value type
void widen(const void* from, DeviceView to, const float* factor, const Context& context);  // to = *factor from
// to = *factor from, float32 to the value type.
void narrow(DeviceView from, DeviceView to, const float* factor, const Context& context);

}  // namespace annulus::cuda
