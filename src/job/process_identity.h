#pragma once

#include <cstdint>

#include "src/io/file_descriptor.h"

namespace annulus {

// Identifies a process to another process on the same host. Process numbers are only valid within a PID namespace,
// which a container may have for itself, and are used again.
struct ProcessIdentity {
  std::uint64_t number = 0;
  std::uint64_t space = 0;  // inode of the PID namespace; 0: unknown
  std::uint64_t start = 0;  // clock ticks after the host's start; 0: unknown

  bool operator==(const ProcessIdentity&) const = default;
};

ProcessIdentity own_identity();

// Returns a descriptor of the process (pidfd_open(2)) if it is proven to be the described process: it has the same
// number and start time, in the same PID namespace. Otherwise the descriptor is invalid.
FileDescriptor open_process(const ProcessIdentity& process);

// Returns whether a signal or a debugger has stopped the process with this number, in this process's PID namespace.
bool is_stopped(std::uint64_t process);

}  // namespace annulus
