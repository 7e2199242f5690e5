#include "src/io/file_mapping.h"

#include <immintrin.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <csignal>

#include "kernels/base/host_memory.h"

namespace annulus {
namespace {

// Where memory holds the bytes so often, they are read in huge pages, if the file system has them: access all over them
// then finds its pages in the processor's table. Where it does not, what is read beside a sample pushes others out.
constexpr std::size_t kRoomy = 4;

constexpr std::size_t kLookedAt = std::size_t{1} << 20;  // of the end, for a byte that is no zero

std::size_t memory_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * kPage;
}

// Whether what is mapped of this file is the file, and its end goes first where it is cut off: elsewhere pages stay as
// they were when another machine does that, and XFS begins with zeros behind what stays.
bool on_this_machine(const FileDescriptor& file) {
  using Magic = decltype(statfs::f_type);
  constexpr std::array<Magic, 3> kLocal{EXT4_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC};
  struct statfs found {};
  return ::fstatfs(file.number(), &found) == 0 && std::ranges::find(kLocal, found.f_type) != kLocal.end();
}

thread_local sigjmp_buf* way_out = nullptr;  // of this thread's read_mapped(), while it reads
struct sigaction action_before {};

void on_bus_error(int signal) {
  if (way_out != nullptr) siglongjmp(*way_out, 1);
  // Somebody else's: as if this function had never been here.
  ::sigaction(SIGBUS, &action_before, nullptr);
  ::raise(signal);
}

// SA_NODEFER: the signal is not blocked while it is handled, so there is no mask to restore on the way out, which
// would be a system call each time.
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
  if (before + bytes <= memory_bytes() / kRoomy) ::madvise(pages, before + bytes, MADV_HUGEPAGE);
  handle_bus_errors();
  pages_ = {static_cast<std::uint8_t*>(pages), Unmap{before + bytes}};
  bytes_ = {pages_.get() + before, bytes};
  if (!on_this_machine(file)) return;
  const auto looked_at = bytes_.last(std::min(bytes, kLookedAt));
  read_mapped([&] {
    const auto last = std::find_if(looked_at.rbegin(), looked_at.rend(), [](std::uint8_t value) { return value != 0; });
    if (last == looked_at.rend()) return;
    last_value_ = *last;
    if (last_value_ != 0) last_ = &*last;  // or it has been cut off since
  });
}

void FileMapping::Unmap::operator()(std::uint8_t* pages) const {
  ::munmap(pages, length);
}

// A signal's handler begins with the processor's default floating-point mode, and jumping out of it keeps that: other
// than a return it does not go back to this thread's (kernels/base/subnormals.h).
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
