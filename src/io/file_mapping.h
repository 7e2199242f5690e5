#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "src/io/file_descriptor.h"

namespace annulus {

// Part of a file as memory: read from the file where it is first touched, shared by all processes that map it, and
// given up by the operating system where memory is short. Copying from it costs what copying memory costs; pread(2)
// costs a system call as well, which for a small image is most of it.
//
// A file that is cut off, or whose disk fails, takes these bytes away, and touching them then ends a process (SIGBUS):
// they are read in read_mapped(). What such a file keeps of its last page goes on as zeros, see surely_whole().
class FileMapping {
 public:
  FileMapping() = default;  // of nothing

  // Of nothing as well where the operating system cannot map this file.
  FileMapping(const FileDescriptor& file, std::uint64_t offset, std::size_t bytes);

  std::span<const std::uint8_t> bytes() const { return bytes_; }

  // Whether it is certain that the file still had all of them when those were read that have been read so far. Asks no
  // system call, which would cost as much as copying some small images; where it is not certain, one must be asked (as
  // on file systems that others can write to). For read_mapped() as well.
  bool surely_whole() const {
    std::atomic_thread_fence(std::memory_order_acquire);  // first what was read, then this
    return last_ != nullptr && *last_ == last_value_;
  }

 private:
  struct Unmap {
    std::size_t length;
    void operator()(std::uint8_t* pages) const;
  };

  std::unique_ptr<std::uint8_t, Unmap> pages_;
  std::span<const std::uint8_t> bytes_;
  const volatile std::uint8_t* last_ = nullptr;  // the last one that is no zero: it would be one if it were cut off
  std::uint8_t last_value_ = 0;
};

// Does `read`, which reads mapped bytes. False where some are gone: then it was left in the middle, without destructors
// being run, so it shall have none, and throw nothing. For any thread; `read` does not come back here.
bool read_mapped(const std::function<void()>& read);

}  // namespace annulus
