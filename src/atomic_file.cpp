#include "src/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "kernels/error.h"
#include "src/file_descriptor.h"

namespace annulus {
namespace {

[[noreturn]] void fail_to_write(const std::filesystem::path& file) {
  const std::string reason = std::generic_category().message(errno);
  fail("{}: cannot write: {}; check the folder, its permissions and the space left", file.string(), reason);
}

// A name that goes away unless it was kept.
class Temporary {
 public:
  explicit Temporary(std::filesystem::path path) : path_(std::move(path)) {}
  Temporary(const Temporary&) = delete;
  ~Temporary() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  const std::filesystem::path& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

bool write_all(int descriptor, std::span<const std::byte> content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) content = content.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

// The rename itself lives in the folder. Some file systems cannot flush one; theirs is then as safe as it gets.
bool flush_folder_of(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return descriptor && (::fsync(descriptor.number()) == 0 || errno == EINVAL);
}

}  // namespace

void write_atomically(const std::filesystem::path& file, std::span<const std::byte> content) {
  const FileDescriptor descriptor(
      ::open((file.string() + ".partial").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!descriptor) fail_to_write(file);
  Temporary temporary(file.string() + ".partial");
  if (!write_all(descriptor.number(), content)) fail_to_write(file);
  if (::fsync(descriptor.number()) != 0) fail_to_write(file);
  if (std::rename(temporary.path().c_str(), file.c_str()) != 0) fail_to_write(file);
  temporary.keep();
  if (!flush_folder_of(file)) fail_to_write(file);
}

}  // namespace annulus
