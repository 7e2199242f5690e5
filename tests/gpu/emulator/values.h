#pragma once

#include <cstddef>
#include <vector>

#include "kernels/precision.h"

namespace emulated {

// Throws Error if `address` is not `count` values of `value_bytes` each that a device can reach, aligned to vectors if
// nothing else is said. `what` names them.
void check_operand(const char* what, const void* address, std::size_t count, std::size_t value_bytes,
                   std::size_t alignment = 16);

// Throws Error if `count` is not a multiple of the number of values that 16 bytes hold.
void check_multiple(const char* what, std::size_t count, annulus::Precision precision);

// Values as float32; as factors, which tf32 rounds to 10 bits of mantissa.
std::vector<float> load(const void* from, std::size_t count, annulus::DataType type);
std::vector<float> load_factors(const void* from, std::size_t count, annulus::Precision precision);

// Rounded to the type.
void store(const std::vector<float>& values, void* to, annulus::DataType type);

}  // namespace emulated
