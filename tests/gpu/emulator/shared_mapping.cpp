#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"

namespace emulated {
namespace {

constexpr std::size_t kPage = 4096, kAlignment = 256;  // CUDA's own

constexpr std::size_t round_up(std::size_t bytes, std::size_t block) {
  return (bytes + block - 1) / block * block;
}

// All of a process's device memory is one sparse file without a name, so that one descriptor suffices and nothing is
// left behind. Offsets are not reused.
struct File {
  std::mutex mutex;
  int descriptor = memfd_create("emulated GPU", MFD_CLOEXEC);
  std::size_t end = 0;
};

File& file() {
  static auto* const one = new File;
  return *one;
}

// The range of all device addresses, followed by a range of the same size in which the memory itself is mapped. No
// address is used twice, and processes whose numbers are near each other have different ranges: an address of another
// process is never valid in this process, unless this process has opened that memory.
class Addresses {
 public:
  Addresses() {
    void* const reserved = mmap(reinterpret_cast<void*>(first_), 2 * kBytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (reserved != reinterpret_cast<void*>(first_)) abort_emulation("no room for device addresses");
  }

  // Room to map memory, with a page before it that faults; null if there is none left.
  std::byte* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes + 2 * kPage > kBytes - taken_) return nullptr;
    taken_ += bytes + kPage;
    return reinterpret_cast<std::byte*>(first_ + kBytes + taken_ - bytes);
  }

  std::uintptr_t of_memory(std::uintptr_t word) const { return word - first_ <= taken_ ? word + kBytes : word; }
  static std::byte* of_device(std::byte* memory) { return memory - kBytes; }

  AddressRange range_of(std::uintptr_t address) const {
    if (address - kFirst >= kProcesses * 2 * kBytes) return AddressRange::none;
    if (address - first_ >= 2 * kBytes) return AddressRange::another_process;
    return address - first_ < kBytes ? AddressRange::device_addresses : AddressRange::memory;
  }

 private:
  // Between programs and shared libraries, also with AddressSanitizer. The upper halves of used addresses are no
  // numbers that kernels' parameters are likely to have.
  static constexpr std::uintptr_t kFirst = 0x6055'0000'0000;
  static constexpr std::size_t kBytes = std::size_t{1} << 36, kProcesses = 200;

  const std::uintptr_t first_ = kFirst + static_cast<std::size_t>(getpid()) % kProcesses * 2 * kBytes;
  std::mutex mutex_;
  std::atomic<std::size_t> taken_ = 0;
};

Addresses& addresses() {
  static auto* const all = new Addresses;
  return *all;
}

// Maps a piece of a file between two pages that fault.
std::byte* map_guarded(int descriptor, std::size_t offset, std::size_t bytes) {
  std::byte* const inner = addresses().take(bytes);
  if (inner == nullptr) return nullptr;
  if (mmap(inner, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, static_cast<off_t>(offset)) ==
      MAP_FAILED)
    return nullptr;
  return inner;
}

// Applies a command for locks to a piece of a file; returns the lock that is there.
struct flock locked(int descriptor, const MemoryName& name, int command, int type) {
  struct flock lock {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(name.offset);
  lock.l_len = static_cast<off_t>(name.mapped);
  if (fcntl(descriptor, command, &lock) != 0) abort_emulation("memory of another process cannot be locked");
  return lock;
}

}  // namespace

void* device_address(void* memory) {
  return Addresses::of_device(static_cast<std::byte*>(memory));
}

AddressRange range_of(const void* address) {
  return addresses().range_of(reinterpret_cast<std::uintptr_t>(address));
}

void make_accessible(void* value, std::size_t bytes) {
  auto* const begin = static_cast<std::byte*>(value);
  for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= bytes; at += sizeof(std::uintptr_t)) {
    std::uintptr_t word = 0;
    std::memcpy(&word, begin + at, sizeof word);
    word = addresses().of_memory(word);
    std::memcpy(begin + at, &word, sizeof word);
  }
}

void* map_shared(std::size_t bytes, MemoryName& name) {
  const std::size_t mapped = round_up(bytes, kPage);
  File& mine = file();
  const std::lock_guard lock(mine.mutex);
  const std::size_t offset = mine.end;
  if (ftruncate(mine.descriptor, static_cast<off_t>(offset + mapped)) != 0) return nullptr;
  std::byte* const memory = map_guarded(mine.descriptor, offset, mapped);
  if (memory == nullptr) return nullptr;
  mine.end += mapped;
  std::memset(memory, 0xff, mapped);
  name = {getpid(), mine.descriptor, offset, mapped, mapped - round_up(bytes, kAlignment), bytes};
  return memory + name.skipped;
}

// The lock shows the owner that the memory is open. It ends with this process at the latest.
void* open_shared(MemoryName& name) {
  const std::string path = fmt::format("/proc/{}/fd/{}", name.process, name.file);
  name.file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (name.file < 0) return nullptr;
  locked(name.file, name, F_OFD_SETLK, F_RDLCK);
  std::byte* const memory = map_guarded(name.file, name.offset, name.mapped);
  if (memory != nullptr) return memory + name.skipped;
  close(name.file);
  return nullptr;
}

void unmap_shared(void* address, const MemoryName& name, bool owner) {
  std::byte* const memory = static_cast<std::byte*>(address) - name.skipped;
  if (owner) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(memory);
    for (std::size_t i = name.skipped + name.bytes; i < name.mapped; ++i)
      if (bytes[i] != 0xff) abort_emulation("something was written right behind the end of device memory");
    if (locked(name.file, name, F_OFD_GETLK, F_WRLCK).l_type != F_UNLCK)
      abort_emulation("memory is freed that another process has not closed yet");
    fallocate(file().descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(name.offset),
              static_cast<off_t>(name.mapped));
  } else {
    close(name.file);
  }
  // The addresses stay reserved, so that a use after free faults instead of accessing other data.
  mmap(memory, name.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace emulated
