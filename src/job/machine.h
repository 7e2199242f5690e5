#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// Describes this process's host and MPI library, for people and reports.
std::string host_name();
std::string processor_name();
// Returns this process's peak resident memory; 0 if unknown. Memory that is now shared with other processes counts in
// equal parts.
std::size_t peak_memory_bytes();
std::string mpi_library();  // MPI's own description; name and version end at the first comma

}  // namespace annulus
