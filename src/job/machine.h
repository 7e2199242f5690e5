#pragma once

#include <cstddef>
#include <string>

namespace annulus {

// What this process runs on and with, for people and reports.
std::string host_name();
std::string processor_name();
std::size_t memory_bytes();       // of the machine; 0 if not known
std::size_t peak_memory_bytes();  // the most physical memory that this process has had at once; 0 if not known
std::string mpi_library();        // MPI's own long line; its name and version end at the first comma

}  // namespace annulus
