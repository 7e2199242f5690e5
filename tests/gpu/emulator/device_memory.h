#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace emulated {

// The information with which another process opens memory of this one.
struct MemoryName {
  pid_t process;
  int file;               // its descriptor, which is that of the process that has opened it, once it has
  std::uint64_t offset;   // in that file
  std::uint64_t mapped;   // whole pages
  std::uint64_t skipped;  // bytes before the memory itself, which ends with its last page
  std::uint64_t bytes;
};

// The host cannot access memory through a device address, which is only reserved. The memory itself is mapped at a
// fixed distance from it, and only the emulator and kernels know where.
void* device_address(void* memory);

// Replaces the device addresses in a value, such as a kernel's parameter, by those of the memory. Every word that could
// be a device address is one: no other values are in that range.
void make_accessible(void* value, std::size_t bytes);

template <class T>
T accessible(T value) {
  make_accessible(&value, sizeof value);
  return value;
}

// Maps memory that other processes may open, filled with ones, between pages that fault; null if there is not enough
// memory. It is in a file that is deleted when its last process ends.
void* map_shared(std::size_t bytes, MemoryName& name);
void* open_shared(MemoryName& name);  // null if it does not exist
// Ends the program if this process owns memory that another one has not closed yet.
void unmap_shared(void* address, const MemoryName& name, bool owner);

enum class AddressRange {
  none,              // of no process's GPU
  another_process,   // device addresses, or memory, of another process
  device_addresses,  // of this process; nothing is mapped there
  memory             // mapped memory that this process has allocated or opened
};
AddressRange range_of(const void* address);

// Makes an illegal access to a device's memory report its reason before it ends the program.
void report_illegal_accesses();

// Returns the reason why an access to this address faulted; null if it is not an address of a GPU.
const char* reason_of_fault(const void* address);

// Whether these bytes lie within one piece of memory that a device can reach.
bool device_reaches(const void* address, std::size_t bytes);

}  // namespace emulated
