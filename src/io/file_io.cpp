#include "src/io/file_io.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "src/io/unreadable.h"

namespace annulus {
namespace {

FileDescriptor open_existing(const std::filesystem::path& file, int mode) {
  FileDescriptor descriptor(::open(file.c_str(), mode | O_CLOEXEC));
  if (!descriptor)
    throw Unreadable(fmt::format("{}: cannot open: {}", file.string(), std::generic_category().message(errno)));
  return descriptor;
}

[[noreturn]] void fail_to_read(const std::filesystem::path& file) {
  throw Unreadable(fmt::format("{}: cannot read: {}", file.string(), std::generic_category().message(errno)));
}

struct stat status_of(const FileDescriptor& descriptor, const std::filesystem::path& file) {
  struct stat status {};
  if (::fstat(descriptor.number(), &status) != 0) fail_to_read(file);
  return status;
}

}  // namespace

// Without O_NONBLOCK, opening a named pipe would wait for a writer; for regular files it has no effect.
FileDescriptor open_to_read(const std::filesystem::path& file) {
  FileDescriptor descriptor = open_existing(file, O_RDONLY | O_NONBLOCK);
  const auto mode = status_of(descriptor, file).st_mode;
  if (!S_ISREG(mode))
    fail("{}: {}, not a regular file", file.string(), S_ISDIR(mode) ? "a folder" : "a pipe or device");
  return descriptor;
}

FileDescriptor open_to_write(const std::filesystem::path& file) {
  return open_existing(file, O_WRONLY);
}

std::uint64_t size_of(const FileDescriptor& descriptor, const std::filesystem::path& file) {
  return static_cast<std::uint64_t>(status_of(descriptor, file).st_size);
}

void read_at(const FileDescriptor& descriptor, const std::filesystem::path& file, std::uint64_t position,
             std::span<std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(descriptor.number(), bytes.data(), bytes.size(), static_cast<off_t>(position));
    if (count == 0) fail("{}: ends at byte {}, before the end of the requested data", file.string(), position);
    if (count < 0 && errno != EINTR) fail_to_read(file);
    if (count > 0) {
      position += static_cast<std::uint64_t>(count);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
}

void read_file(const std::filesystem::path& file, std::size_t most, std::vector<std::uint8_t>& bytes) {
  const FileDescriptor descriptor = open_to_read(file);
  const std::uint64_t size = size_of(descriptor, file);
  if (size > most) fail("{}: {} bytes; at most {} are supported", file.string(), size, most);
  bytes.resize(size);
  read_at(descriptor, file, 0, bytes);
}

void write_at(const FileDescriptor& descriptor, const std::filesystem::path& file, std::uint64_t position,
              std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor.number(), bytes.data(), bytes.size(), static_cast<off_t>(position));
    if (count < 0 && errno != EINTR) fail_to_write(file);
    if (count > 0) {
      position += static_cast<std::uint64_t>(count);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
}

void allow_many_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));  // if this is not permitted, opening too many files reports it
}

void flush(const FileDescriptor& descriptor, const std::filesystem::path& file) {
  if (::fsync(descriptor.number()) != 0) fail_to_write(file);
}

void fail_to_write(const std::filesystem::path& file) {
  const std::string reason = std::generic_category().message(errno);
  fail("{}: cannot write: {}; check the folder, its permissions and the space left", file.string(), reason);
}

}  // namespace annulus
