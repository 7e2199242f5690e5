#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace annulus {

// The memory that a process may use: the machine's, unless a control group (a container's or a batch system's) or a
// process limit (ulimit -v) allows less.
struct AllowedMemory {
  std::size_t bytes = 0;
  std::string source;       // "this machine", "control group /docker/7 (memory.max)", "ulimit -v"
  bool shared = true;       // by all processes with the same `group`; false: the limit is this process's own
  std::uint64_t group = 0;  // identifies a control group on this machine; 0: the machine
};

// The processors that all processes on this machine, or in this process's control group, may use together. The affinity
// mask is not considered; see processors_allowed().
struct AllowedProcessors {
  int count = 1;       // a quota is rounded down, but not to 0
  std::string source;  // "this machine", "control group /docker/7 (cpu.max)"
};

// Determined once: limits that change later have no effect.
const AllowedMemory& allowed_memory();
const AllowedProcessors& allowed_processors();

// Returns the bytes that this process can still map, now; the largest number if ulimit -v does not limit it.
std::size_t free_address_space();

// Sets the number of processes that share allowed_memory(), including this one; initially 1.
void share_memory(int processes);
// Returns an even share of allowed_memory(), in bytes.
std::size_t memory_share();

// For tests: as if `root` was the root folder. Control groups of both versions are read, up to the top of the mounted
// hierarchy.
AllowedMemory find_allowed_memory(const std::filesystem::path& root);
AllowedProcessors find_allowed_processors(const std::filesystem::path& root);

}  // namespace annulus
