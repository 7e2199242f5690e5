#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "src/io/file_descriptor.h"

namespace annulus {

// Maps part of a file into memory: read on first access, shared by all processes that map it, and reclaimed by the
// operating system if memory is short. Reading costs as much as copying memory; pread(2) adds a system call, which
// takes most of the time for a small image.
//
// If the file is truncated or the disk fails, these bytes are gone, and accessing them raises SIGBUS: read them inside
// read_mapped(). The rest of a truncated file's last page reads as zeros, see surely_whole().
class FileMapping {
 public:
  FileMapping() = default;  // empty

  // Empty as well if the operating system cannot map this file.
  FileMapping(const FileDescriptor& file, std::uint64_t offset, std::size_t bytes);

  std::span<const std::uint8_t> bytes() const { return bytes_; }

  // Returns true if the file certainly had all bytes at the time of all reads so far. Makes no system call, which would
  // cost as much as copying some small images. If it returns false, the caller must make a system call (for example on
  // file systems that others can write to). Call inside read_mapped() as well.
  bool surely_whole() const {
    std::atomic_thread_fence(std::memory_order_acquire);  // orders the reads before this check
    return last_ != nullptr && *last_ == last_value_;
  }

 private:
  struct Unmap {
    std::size_t length;
    void operator()(std::uint8_t* pages) const;
  };

  std::unique_ptr<std::uint8_t, Unmap> pages_;
  std::span<const std::uint8_t> bytes_;
  const volatile std::uint8_t* last_ = nullptr;  // the last nonzero byte: zero if the file was truncated
  std::uint8_t last_value_ = 0;
};

// Calls `read`, which reads mapped bytes. Returns false if some are gone: then `read` was aborted without running
// destructors, so it must have none. It must not throw or call read_mapped(). Thread-safe.
bool read_mapped(const std::function<void()>& read);

}  // namespace annulus
