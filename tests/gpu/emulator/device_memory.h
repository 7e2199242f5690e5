#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace emulated {

// What another process needs to know to open memory of this one.
struct MemoryName {
  pid_t process;
  int file;               // its descriptor there
  std::uint64_t offset;   // in that file
  std::uint64_t mapped;   // whole pages
  std::uint64_t skipped;  // bytes before the memory itself, which ends with its last page
  std::uint64_t bytes;
};

// Memory full of ones that other processes may open, between pages that fault; null where there is not so much. It
// lies in a file that goes when its last process does.
void* map_shared(std::size_t bytes, MemoryName& name);
void* open_shared(const MemoryName& name);  // null where it is not there
void unmap_shared(void* address, const MemoryName& name, bool owner);

// Whether these bytes lie within one piece of memory that a device can reach.
bool device_reaches(const void* address, std::size_t bytes);

}  // namespace emulated
