#pragma once

#include <unistd.h>

#include <cstddef>

namespace annulus {

// Bytes of memory of this machine.
inline std::size_t physical_memory() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace annulus
