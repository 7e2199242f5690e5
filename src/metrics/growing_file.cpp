#include "src/metrics/growing_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "kernels/base/error.h"
#include "src/io/file_io.h"

namespace annulus {

GrowingFile::GrowingFile(const std::filesystem::path& file)
    : path_(file), descriptor_(::open(file.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666)) {
  if (!descriptor_ && errno == ELOOP) fail("{}: is a symbolic link, which is not followed; remove it", path_.string());
  // With O_NONBLOCK a pipe that nobody reads cannot be opened for writing, instead of blocking.
  if (descriptor_ ? !std::filesystem::is_regular_file(path_) : errno == ENXIO)
    fail("{}: a pipe or device, not a regular file; remove it, and follow the file with tail -F", path_.string());
  if (!descriptor_) fail_to_write(path_);
  size_ = size_of(descriptor_, path_);
}

void GrowingFile::append(std::string_view bytes) try {
  write_at(descriptor_, path_, size_, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  size_ += bytes.size();
} catch (const Error&) {
  static_cast<void>(::ftruncate(descriptor_.number(), static_cast<off_t>(size_)));  // the Error below suffices
  throw;
}

void GrowingFile::cut(std::uint64_t size) {
  if (::ftruncate(descriptor_.number(), static_cast<off_t>(size)) != 0) fail_to_write(path_);
  size_ = size;
}

void keep_lines_until(GrowingFile& file, std::uint64_t step, const StepOf& step_of) {
  std::ifstream lines(file.path());
  if (!lines) fail("{}: cannot read this file", file.path().string());
  std::uint64_t kept = 0;
  for (std::string line; std::getline(lines, line) && !lines.eof(); kept += line.size() + 1) {
    const auto found = step_of(line);
    if (!found || *found > step) break;
  }
  if (lines.bad()) fail("{}: cannot read this file to its end", file.path().string());
  file.cut(kept);
}

}  // namespace annulus
