#pragma once

#include <cstddef>

namespace emulated {

std::size_t device_bytes();  // ANNULUS_EMULATED_MEMORY in MiB, or 8 GiB
constexpr int kMultiprocessors = 2;

}  // namespace emulated
