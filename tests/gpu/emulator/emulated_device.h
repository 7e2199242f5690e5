#pragma once

#include <cstddef>

namespace emulated {

constexpr std::size_t kDeviceBytes = std::size_t{8} << 30;
constexpr int kMultiprocessors = 2;

}  // namespace emulated
