#include "src/job/process_identity.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace annulus {
namespace {

std::uint64_t own_space() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Returns the number and the start time in a process's `stat` file, see proc(5); zeros if it cannot be read. `name`:
// a number, or "self".
ProcessIdentity read_status(const std::string& name) {
  constexpr int kFieldsBefore = 19;  // the start time, from the state on
  std::ifstream file("/proc/" + name + "/stat");
  ProcessIdentity process;
  file >> process.number;
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t end = text.rfind(')');  // ends the command, which may contain anything
  if (end == std::string::npos) return {};
  std::istringstream fields(text.substr(end + 1));
  for (int field = 0; field < kFieldsBefore; ++field) fields >> text;
  fields >> process.start;
  return fields ? process : ProcessIdentity{};
}

}  // namespace

// The files in /proc may describe another namespace, in which this process has another number: then nothing is proven.
ProcessIdentity own_identity() {
  ProcessIdentity own = read_status("self");
  if (own.number == static_cast<std::uint64_t>(getpid())) own.space = own_space();
  return own;
}

FileDescriptor open_process(const ProcessIdentity& process) {
  const ProcessIdentity own = own_identity();
  if (process.space == 0 || process.space != own.space) return FileDescriptor(-1);
  FileDescriptor opened(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process.number), 0)));
  // The number was the process's when it started. If it still is, it was when the descriptor was opened, too.
  ProcessIdentity found = read_status(fmt::format("{}", process.number));
  found.space = own.space;
  return found == process ? std::move(opened) : FileDescriptor(-1);
}

}  // namespace annulus
