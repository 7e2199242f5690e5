#include "src/io/folder_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/base/error.h"
#include "src/io/file_io.h"

namespace annulus {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMark = "annulus.lock";

// A process that was just killed may need a moment to end.
constexpr std::chrono::seconds kTimeout(2);
constexpr std::chrono::milliseconds kPause(50);

// Returns whether it made the folder. Another process may remove it meanwhile.
bool make_folder(const fs::path& folder) {
  while (true) {
    std::error_code error;
    const bool made = fs::create_directories(folder, error);
    if (!error) return made;
    if (error == std::errc::file_exists && fs::is_directory(folder)) return false;
    if (error != std::errc::file_exists || fs::exists(fs::symlink_status(folder)))
      fail("{}: cannot create this folder: {}", folder.string(), error.message());
  }
}

bool has_foreign_files(const fs::path& folder) {
  if (is_marked(folder)) return false;
  std::error_code error;
  const bool is_empty = fs::is_empty(folder, error);
  if (error == std::errc::no_such_file_or_directory) return false;  // the process that held it has just removed it
  if (error) fail("{}: cannot read this folder: {}", folder.string(), error.message());
  return !is_empty;
}

// Looks again before it refuses: between two looks another process may have claimed the folder, or removed it.
void expect_ours(const fs::path& folder, const std::string& advice) {
  for (int looks = 0; has_foreign_files(folder); ++looks) {
    if (looks == 3) fail("{}: holds files that this program did not write; {}", folder.string(), advice);
    std::this_thread::sleep_for(kPause / 10);
  }
}

// Creates the folder again if the process that held it has just removed it.
FileDescriptor open_mark(const fs::path& folder) {
  const fs::path mark = folder / kMark;
  while (true) {
    FileDescriptor descriptor(::open(mark.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (descriptor) return descriptor;
    if (errno != ENOENT) fail_to_write(mark);
    make_folder(folder);
  }
}

// `type`: F_WRLCK, or F_RDLCK to share it. Returns true as well if the file system has no locks.
bool try_lock(const FileDescriptor& descriptor, short type) {
  struct flock whole {};
  whole.l_type = type;
  whole.l_whence = SEEK_SET;
  return ::fcntl(descriptor.number(), F_OFD_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES);
}

// Another process may remove the folder between opening the mark and locking it.
bool is_removed(const FileDescriptor& descriptor) {
  struct stat status {};
  return ::fstat(descriptor.number(), &status) == 0 && status.st_nlink == 0;
}

[[noreturn]] void fail_as_claimed(const fs::path& folder, const std::string& advice) {
  fail("{}: another process of this program is writing to it ({}); wait for it to end, or {}", folder.string(),
       claimant(folder), advice);
}

std::string full_advice(const std::string& advice, const std::string& adoption) {
  return adoption.empty() ? advice : advice + ", or " + adoption;
}

FileDescriptor lock(const fs::path& folder, const std::string& advice) {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (true) {
    FileDescriptor descriptor = open_mark(folder);
    if (!try_lock(descriptor, F_WRLCK)) {
      if (std::chrono::steady_clock::now() > deadline) fail_as_claimed(folder, advice);
      std::this_thread::sleep_for(kPause);
    } else if (!is_removed(descriptor)) {
      return descriptor;
    }
  }
}

}  // namespace

FolderClaim::FolderClaim(const fs::path& folder, bool adopt, const std::string& advice, const std::string& adoption)
    : folder_(folder), is_new_(make_folder(folder)), lock_(-1) {
  if (!adopt) expect_ours(folder, full_advice(advice, adoption));
  lock_ = lock(folder, advice);
  sign();
}

FolderClaim::FolderClaim(const fs::path& folder, FileDescriptor lock)
    : folder_(folder), is_new_(false), lock_(std::move(lock)) {}

void expect_claimable(const fs::path& folder, bool adopt, const std::string& advice, const std::string& adoption) {
  fs::path existing = fs::absolute(folder);
  while (!fs::exists(existing)) existing = existing.parent_path();
  if (!fs::is_directory(existing)) fail("{}: cannot create this folder: Not a directory", folder.string());
  if (::access(existing.c_str(), W_OK | X_OK) != 0) fail_to_write(folder);
  if (!adopt && fs::exists(folder)) expect_ours(folder, full_advice(advice, adoption));
  if (is_claimed(folder)) fail_as_claimed(folder, advice);
}

void FolderClaim::share() const {
  if (!try_lock(lock_, F_RDLCK)) fail("{}: cannot share the lock {}", folder_.string(), kMark);
}

FolderClaim FolderClaim::join(const fs::path& folder) {
  FolderClaim claim(folder, open_mark(folder));
  claim.share();
  return claim;
}

void FolderClaim::sign() const {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string text = fmt::format("host {}, process {}\n", host.data(), ::getpid());
  if (::ftruncate(lock_.number(), 0) != 0) fail_to_write(folder_ / kMark);
  write_at(lock_, folder_ / kMark, 0, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

bool is_claimed(const fs::path& folder) {
  const FileDescriptor descriptor(::open((folder / kMark).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return descriptor && ::fcntl(descriptor.number(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

bool is_marked(const fs::path& folder) {
  std::error_code error;
  return fs::symlink_status(folder / kMark, error).type() == fs::file_type::regular;
}

std::string claimant(const fs::path& folder) {
  std::ifstream stream(folder / kMark);
  std::string line;
  return std::getline(stream, line) ? line : "unknown";
}

fs::path next_claim(const fs::path& folder) {
  return folder / "next";
}

void FolderClaim::clear() const {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
    if (entry.path().filename() != kMark) fs::remove_all(entry.path());
}

void FolderClaim::remove() const {
  clear();  // the mark goes last: another process that looks meanwhile never sees files without it
  std::error_code error;
  fs::remove_all(folder_, error);
  // Another process may have put a mark there meanwhile, and then owns the folder.
  if (error && error != std::errc::directory_not_empty)
    fail("{}: cannot remove this folder: {}", folder_.string(), error.message());
}

}  // namespace annulus
