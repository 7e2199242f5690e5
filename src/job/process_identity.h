#pragma once

#include <cstdint>

#include "src/io/file_descriptor.h"

namespace annulus {

// A process, as another one on the same host can recognize it. Numbers of processes are only valid within a PID
// namespace, which containers may have of their own, and are used again.
struct ProcessIdentity {
  std::uint64_t number = 0;
  std::uint64_t space = 0;  // inode of its PID namespace; 0: unknown
  std::uint64_t start = 0;  // clock ticks after the host's start; 0: unknown

  bool operator==(const ProcessIdentity&) const = default;
};

ProcessIdentity own_identity();

// Returns a descriptor of the process (pidfd_open(2)) if it is proven to be the one that was described: it has the
// number and the start time, in the PID namespace of both. Otherwise the descriptor is invalid.
FileDescriptor open_process(const ProcessIdentity& process);

}  // namespace annulus
