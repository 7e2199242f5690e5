#include "src/job/process_identity.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

namespace annulus {
namespace {

std::uint64_t own_space() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Returns a process's `stat` file, see proc(5): the number, and the fields from the state on; empty if it cannot be
// read. `name`: a number, or "self".
std::pair<std::uint64_t, std::string> read_fields(const std::string& name) {
  std::ifstream file("/proc/" + name + "/stat");
  std::uint64_t number = 0;
  file >> number;
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t end = text.rfind(')');  // ends the command, which may contain anything
  if (end == std::string::npos) return {};
  return {number, text.substr(end + 1)};
}

// Returns the number and the start time; zeros if they cannot be read.
ProcessIdentity read_status(const std::string& name) {
  constexpr int kFieldsBefore = 19;  // the start time, from the state on
  ProcessIdentity process;
  std::string text;
  std::tie(process.number, text) = read_fields(name);
  std::istringstream fields(text);
  for (int field = 0; field < kFieldsBefore; ++field) fields >> text;
  fields >> process.start;
  return fields ? process : ProcessIdentity{};
}

}  // namespace

bool is_stopped(std::uint64_t process) {
  const std::string fields = read_fields(fmt::format("{}", process)).second;
  const std::size_t state = fields.find_first_not_of(' ');
  return state != std::string::npos && (fields[state] == 'T' || fields[state] == 't');
}

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
