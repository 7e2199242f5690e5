#pragma once

#include <span>

#include "kernels/base/array_hash.h"

namespace annulus::cpu {

void add_hash(std::span<const float> values, ArrayHash& to);

}  // namespace annulus::cpu
