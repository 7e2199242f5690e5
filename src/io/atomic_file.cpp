#include "src/io/atomic_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "src/io/file_io.h"

namespace annulus {
namespace {

// Creates a new file: removes what a killed writer left behind, and does not follow a link in the file's place.
int open_new(const std::filesystem::path& file) {
  if (::unlink(file.c_str()) != 0 && errno != ENOENT) return -1;
  return ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

// The rename is stored in the folder. Some file systems cannot flush a folder; nothing more can be done there.
bool flush_folder_of(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return descriptor && (::fsync(descriptor.number()) == 0 || errno == EINVAL);
}

}  // namespace

std::filesystem::path AtomicFile::partial(const std::filesystem::path& file) {
  return file.string() + ".partial";
}

AtomicFile::AtomicFile(const std::filesystem::path& file)
    : file_(file), partial_(partial(file)), descriptor_(open_new(partial_)) {
  if (!descriptor_) fail_to_write(file_);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : file_(std::move(other.file_)),
      partial_(std::exchange(other.partial_, {})),
      descriptor_(std::move(other.descriptor_)) {}

AtomicFile::~AtomicFile() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void AtomicFile::write_at(std::uint64_t position, std::span<const std::uint8_t> bytes) {
  annulus::write_at(descriptor_, file_, position, bytes);
}

void AtomicFile::write(std::span<const std::byte> content) {
  write_at(0, {reinterpret_cast<const std::uint8_t*>(content.data()), content.size()});
}

// Not all file systems can preallocate space. Elsewhere, only the reported free space can be checked.
void AtomicFile::reserve(std::uint64_t bytes) {
  if (::fallocate(descriptor_.number(), 0, 0, static_cast<off_t>(bytes)) == 0) return;
  if (errno != EOPNOTSUPP) fail_to_write(file_);
  struct statvfs system {};
  if (::fstatvfs(descriptor_.number(), &system) != 0) fail_to_write(file_);
  errno = ENOSPC;
  if (std::uint64_t{system.f_bavail} * system.f_frsize < bytes) fail_to_write(file_);
  if (::ftruncate(descriptor_.number(), static_cast<off_t>(bytes)) != 0) fail_to_write(file_);
}

void AtomicFile::commit() {
  flush(descriptor_, file_);
  if (std::rename(partial_.c_str(), file_.c_str()) != 0) fail_to_write(file_);
  partial_.clear();
  if (!flush_folder_of(file_)) fail_to_write(file_);
}

void write_atomically(const std::filesystem::path& file, std::span<const std::byte> content) {
  AtomicFile whole(file);
  whole.write(content);
  whole.commit();
}

}  // namespace annulus
