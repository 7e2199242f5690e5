#include "src/io/file_mapping.h"

#include <immintrin.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <csignal>

#include "kernels/base/allowed_resources.h"
#include "kernels/base/host_memory.h"

namespace annulus {
namespace {

// If memory is this many times larger than the mapping, it uses huge pages, if the file system supports them: random
// access then hits the processor's TLB. With less memory, the data read around each sample would evict other samples.
constexpr std::size_t kRoomy = 4;

constexpr std::size_t kLookedAt = std::size_t{1} << 20;  // bytes at the end that are searched for a nonzero byte

// Returns whether the mapping always shows the current file, and truncation removes the file's end first. On other file
// systems pages stay unchanged when another machine truncates the file, and XFS first zeroes the bytes after the
// remaining part.
bool on_this_machine(const FileDescriptor& file) {
  using Magic = decltype(statfs::f_type);
  constexpr std::array<Magic, 3> kLocal{EXT4_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC};
  struct statfs found {};
  return ::fstatfs(file.number(), &found) == 0 && std::ranges::find(kLocal, found.f_type) != kLocal.end();
}

thread_local sigjmp_buf* way_out = nullptr;  // for this thread's read_mapped(), during the call
struct sigaction action_before {};

void on_bus_error(int signal) {
  if (way_out != nullptr) siglongjmp(*way_out, 1);
  // Not ours: restores the previous handler and raises the signal again.
  ::sigaction(SIGBUS, &action_before, nullptr);
  ::raise(signal);
}

// SA_NODEFER: the signal is not blocked while it is handled, so there is no mask to restore on the way out, at the cost
// of a system call each time.
void handle_bus_errors() {
  [[maybe_unused]] static const bool once = [] {
    struct sigaction action {};
    action.sa_handler = on_bus_error;
    action.sa_flags = SA_NODEFER;
    return ::sigaction(SIGBUS, &action, &action_before) == 0;
  }();
}

}  // namespace

FileMapping::FileMapping(const FileDescriptor& file, std::uint64_t offset, std::size_t bytes) {
  const std::size_t before = offset % kPage;
  void* const pages =
      ::mmap(nullptr, before + bytes, PROT_READ, MAP_SHARED, file.number(), static_cast<off_t>(offset - before));
  if (pages == MAP_FAILED) return;
  if (before + bytes <= allowed_memory().bytes / kRoomy) ::madvise(pages, before + bytes, MADV_HUGEPAGE);
  handle_bus_errors();
  pages_ = {static_cast<std::uint8_t*>(pages), Unmap{before + bytes}};
  bytes_ = {pages_.get() + before, bytes};
  if (!on_this_machine(file)) return;
  const auto looked_at = bytes_.last(std::min(bytes, kLookedAt));
  read_mapped([&] {
    const auto last = std::find_if(looked_at.rbegin(), looked_at.rend(), [](std::uint8_t value) { return value != 0; });
    if (last == looked_at.rend()) return;
    last_value_ = *last;
    if (last_value_ != 0) last_ = &*last;  // else it was truncated in the meantime
  });
}

void FileMapping::Unmap::operator()(std::uint8_t* pages) const {
  ::munmap(pages, length);
}

// A signal handler starts with the processor's default floating-point mode. Unlike a return, jumping out of the handler
// does not restore this thread's mode (kernels/base/subnormals.h), so this function does.
bool read_mapped(const std::function<void()>& read) {
  const unsigned floating_point_mode = _mm_getcsr();
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) {
    _mm_setcsr(floating_point_mode);
    way_out = nullptr;
    return false;
  }
  way_out = &here;
  read();
  way_out = nullptr;
  return true;
}

}  // namespace annulus
