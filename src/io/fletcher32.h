#pragma once

#include <cstdint>
#include <span>

namespace annulus {

// The checksum of HDF5's fletcher32 filter, which is stored after a chunk's bytes, little-endian: Fletcher, "An
// arithmetic checksum for serial transmissions", 1982, over big-endian 16-bit words, as in H5_checksum_fletcher32().
std::uint32_t fletcher32(std::span<const std::uint8_t> bytes);

}  // namespace annulus
