#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// Describes this process's host and MPI library, for people and reports.
std::string host_name();
std::string processor_name();
std::size_t peak_memory_bytes();  // peak resident memory of this process; 0 if unknown
std::string mpi_library();        // MPI's own description; name and version end at the first comma

}  // namespace annulus
