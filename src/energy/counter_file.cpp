#include "src/energy/counter_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "kernels/base/error.h"
#include "src/io/file_descriptor.h"

namespace annulus {

std::string read_counter_file(const std::filesystem::path& file) {
  const FileDescriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text{};
  const ssize_t size = opened.number() < 0 ? -1 : ::read(opened.number(), text.data(), text.size());
  if (size < 0)
    fail("{}: {}{}", file.string(), std::strerror(errno), errno == EACCES ? " (readable by root only)" : "");
  const std::string all(text.data(), static_cast<std::size_t>(size));
  return all.substr(0, all.find('\n'));
}

}  // namespace annulus
