#include "src/job/machine.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>
#include <string_view>

#include "collectives/world/mpi.h"

namespace annulus {
namespace {

// Returns the text after the key in the first line that begins with it.
std::optional<std::string> line_of(const char* file, std::string_view key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(key)) return line.substr(key.size());
  return std::nullopt;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string processor_name() {
  return line_of("/proc/cpuinfo", "model name\t: ").value_or("unknown processor");
}

// Not by getrusage(), which includes the memory of the program that started this process. Memory that a node's ranks
// share counts fully in each rank here, too, so it is replaced by this process's part.
std::size_t peak_memory_bytes() {
  const auto bytes = [](const char* file, std::string_view key) {
    const auto line = line_of(file, key);
    return line ? std::optional(1024 * std::stoull(*line)) : std::nullopt;
  };
  const std::size_t peak = bytes("/proc/self/status", "VmHWM:").value_or(0);
  const std::size_t shared = bytes("/proc/self/status", "RssShmem:").value_or(0);
  return peak - shared + bytes("/proc/self/smaps_rollup", "Pss_Shmem:").value_or(shared);
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length));
  return text.data();
}

}  // namespace annulus
