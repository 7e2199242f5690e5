#include "src/machine.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <string_view>

#include "collectives/mpi.h"

namespace annulus {

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string processor_name() {
  constexpr std::string_view key = "model name\t: ";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with(key)) return line.substr(key.size());
  return "unknown processor";
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length));
  return text.data();
}

}  // namespace annulus
