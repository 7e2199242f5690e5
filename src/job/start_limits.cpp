#include "src/job/start_limits.h"

#include <sys/resource.h>

#include <cstddef>
#include <filesystem>
#include <iterator>

#include "kernels/base/allowed_resources.h"
#include "kernels/base/error.h"
#include "src/io/bytes.h"

namespace annulus {
namespace {

constexpr std::size_t kFiles = 32;             // Open MPI 4.1 opens 22, and a run has several open
constexpr std::size_t kMemory = 320ULL << 20;  // address space for MPI, thread stacks and heaps, generated code

// Counts the files that this process has open; 0 if unknown.
std::size_t open_files() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

}  // namespace

void require_room_to_start() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0)
    if (const std::size_t needed = open_files() + kFiles; files.rlim_cur < needed)
      fail(
          "this process may open {} files (ulimit -n), and needs {} or more to start: give a higher limit, such as "
          "ulimit -n 1024, in the shell or the batch script that lowers it",
          files.rlim_cur, needed);
  rlimit memory{};
  if (const std::size_t left = free_address_space(); left < kMemory && ::getrlimit(RLIMIT_AS, &memory) == 0) {
    const std::size_t needed = memory.rlim_cur - left + kMemory;
    fail(
        "this process may use {} of memory (ulimit -v {}), and needs {} to start: give a higher limit, such as ulimit "
        "-v {}, or none",
        format_bytes(memory.rlim_cur), memory.rlim_cur >> 10, format_bytes(needed), needed >> 9);
  }
}

}  // namespace annulus
